//! What the door is compared with: an axum route that parses the same JSON and answers at once.

use std::net::SocketAddr;

use axum::{
    Json, Router,
    http::StatusCode,
    routing::{get, post},
};
use campaign::identity::RequestId;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::error::{BenchError, Result};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    campaign: String,
    user_id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Accepted {
    result: &'static str,
    request_id: RequestId,
}

/// Serves until the process ends.
pub async fn serve(address: SocketAddr) -> Result<()> {
    let routes = Router::new()
        .route("/coupon-issues", post(claim))
        .route("/livez", get(async || StatusCode::OK));
    let listener = TcpListener::bind(address)
        .await
        .map_err(BenchError::io(format!("listen on {address}")))?;
    axum::serve(listener, routes)
        .await
        .map_err(BenchError::io("serve the bare route"))
}

async fn claim(Json(claim): Json<Claim>) -> (StatusCode, Json<Accepted>) {
    // Parsed, so that it is paid for.
    let valid = !claim.campaign.is_empty() && !claim.user_id.is_empty();
    let status = if valid {
        StatusCode::ACCEPTED
    } else {
        StatusCode::BAD_REQUEST
    };
    let accepted = Accepted {
        result: "SUCCESS",
        request_id: RequestId::fresh(),
    };
    (status, Json(accepted))
}
