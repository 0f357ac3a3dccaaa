//! Probes and metrics.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    App, answer,
    problem::{Code, Problem},
};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// On both ports.
pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(livez)).routes(routes!(readyz))
}

/// The process runs. Says nothing about the servers: a restart would not bring them back.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 200, description = "it runs")))]
pub(super) async fn livez() -> Response {
    answer::bytes(StatusCode::OK, TEXT, "ok\n")
}

/// The checks at start have passed and the process is not about to end. An outage of Redis or Kafka is answered claim
/// by claim: taking every pod out at once would help nobody.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "it takes claims"),
    (status = 503, description = "it is about to end"),
))]
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Response {
    if app.shutdown.is_cancelled() {
        answer::bytes(StatusCode::SERVICE_UNAVAILABLE, TEXT, "shutting down\n")
    } else {
        answer::bytes(StatusCode::OK, TEXT, "ok\n")
    }
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "internal", responses((status = 200, description = "OpenMetrics text")))]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    match app.metrics.encode(app.door.levels()) {
        Ok(text) => Ok(answer::bytes(StatusCode::OK, OPEN_METRICS, text)),
        Err(error) => {
            tracing::error!(%error, "metrics could not be written");
            Err(Problem::new(Code::Internal, "metrics could not be written"))
        }
    }
}
