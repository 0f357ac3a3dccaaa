//! Answers that are no problem: JSON that nobody may store.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Serialize;

use super::problem::{Code, Problem};

pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `value` as JSON.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Result<Response, Problem> {
    match serde_json::to_vec(value) {
        Ok(body) => Ok(bytes(status, JSON, body)),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            Err(Problem::new(Code::Internal, "the answer could not be written"))
        }
    }
}

/// A body that is ready.
pub(super) fn bytes(status: StatusCode, content_type: HeaderValue, body: impl Into<Body>) -> Response {
    // By hand and not by layers: this is on the path of every claim.
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    response
}
