//! `/livez`, `/readyz` and `/metrics` on the internal port.
//!
//! Liveness stays green while a server is out: a restart would not bring it back. Readiness tells what is out.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use campaign::{kafka::producer::Producer, postgres::database::Database};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

const PATIENCE: Duration = Duration::from_secs(1);

/// What the internal port looks at.
#[derive(Clone)]
pub struct Health {
    /// Answers a trivial query.
    pub database: Database,
    /// Knows whether a broker is there.
    pub producer: Producer,
    /// Counters.
    pub metrics: Metrics,
    /// The worker stops.
    pub stop: CancellationToken,
}

/// The routes of the internal port.
pub fn routes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(health))
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    let not_ready = |why: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    if health.stop.is_cancelled() {
        return not_ready("stopping".to_owned());
    }
    if !health.producer.brokers_up() {
        return not_ready("no Kafka broker is reachable".to_owned());
    }
    match tokio::time::timeout(PATIENCE, health.database.ping()).await {
        Ok(Ok(())) => "ok\n".into_response(),
        Ok(Err(error)) => not_ready(error.to_string()),
        Err(_) => not_ready("Postgres does not answer".to_owned()),
    }
}

async fn metrics(State(health): State<Arc<Health>>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match health.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
