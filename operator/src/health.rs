//! `/livez`, `/readyz` and `/metrics`, on the leader and on the others.
//!
//! Liveness stays green while a server is out: a restart would not bring it back. Readiness tells what is out.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{metrics::Metrics, servers::Connected};

/// The API server answers every two seconds when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

/// When the API server last answered. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Option<Instant>>>);

impl Heartbeat {
    /// It answered just now.
    pub fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_fresh(&self) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < PATIENCE)
    }
}

/// What the port looks at.
#[derive(Clone)]
pub struct Health {
    /// Of the API server.
    pub heartbeat: Heartbeat,
    /// Of the servers behind the campaigns.
    pub servers: Connected,
    /// Counters.
    pub metrics: Metrics,
}

/// The routes of the port.
pub fn routes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(health))
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    let not_ready = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    if !health.heartbeat.is_fresh() {
        return not_ready("the API server does not answer");
    }
    match health.servers.now() {
        Ok(_) => "ok\n".into_response(),
        Err(reason) => not_ready(&reason),
    }
}

async fn metrics(State(health): State<Arc<Health>>) -> Response {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match health.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
