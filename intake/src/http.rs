//! What the outside sees: a public port for claims and an internal one for coupons, probes and metrics.
//! `docs/api.md` explains it, `docs/openapi.json` describes it for machines.

pub mod campaign;
pub mod claim;
pub mod coupons;
pub mod health;
pub mod problem;
pub mod status;

mod answer;
mod openapi;

use std::sync::Arc;

use ::campaign::{postgres::database::Database, redis::state::StateStore};
use axum::Router;
use tokio_util::sync::CancellationToken;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use self::openapi::openapi;
use self::problem::{Code, Problem};
use crate::{campaigns::Campaigns, door::Door, metrics::Metrics};

/// What the handlers work with.
pub struct App {
    /// Takes claims.
    pub door: Arc<Door>,
    /// What is known of the campaigns.
    pub campaigns: Arc<Campaigns>,
    /// Redis, for reading.
    pub state: StateStore,
    /// Postgres.
    pub database: Database,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// Set once the process is to end: not ready any more.
    pub shutdown: CancellationToken,
}

/// The public port.
pub fn public(app: Arc<App>) -> Router {
    let (router, _) = public_routes().split_for_parts();
    with_fallbacks(router).with_state(app)
}

/// The internal port.
pub fn internal(app: Arc<App>) -> Router {
    let (router, _) = internal_routes().split_for_parts();
    with_fallbacks(router).with_state(app)
}

fn public_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(claim::claim))
        .routes(routes!(status::status))
        .routes(routes!(campaign::campaign))
        .routes(routes!(campaign::campaign_in_namespace))
        .merge(health::routes())
}

fn internal_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(coupons::list))
        .routes(routes!(coupons::use_by_id))
        .routes(routes!(coupons::use_by_code))
        .routes(routes!(coupons::cancel))
        .routes(routes!(health::metrics))
        .merge(health::routes())
}

fn with_fallbacks(router: Router<Arc<App>>) -> Router<Arc<App>> {
    router
        .fallback(async || Problem::new(Code::NotFound, "there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            Problem::new(Code::MethodNotAllowed, "this path does not take this method")
        })
}
