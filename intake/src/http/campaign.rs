//! `GET /campaigns/{name}`: what a shop window shows, at most a quarter of a second old.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use campaign::{
    name::CampaignName,
    redis::state::{StateAnswer, StateStatus},
};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    App, answer,
    problem::{Code, Problem, ProblemBody},
};

/// A campaign as the public sees it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CampaignAnswer {
    /// `namespace/name`.
    #[schema(value_type = String)]
    campaign: CampaignName,
    /// Coupons in all.
    quantity: i64,
    /// Coupons that were free at most a quarter of a second ago. `null` once the campaign is over and its state is gone.
    available: Option<i64>,
    /// The window, if any.
    #[schema(value_type = Option<String>, format = DateTime)]
    opens_at: Option<Timestamp>,
    /// The window, if any.
    #[schema(value_type = Option<String>, format = DateTime)]
    closes_at: Option<Timestamp>,
    /// Whether claims are refused for now.
    paused: bool,
}

/// A campaign of the installation's own namespace.
#[utoipa::path(
    get,
    path = "/campaigns/{name}",
    tag = "public",
    params(("name" = String, Path, description = "the campaign")),
    responses(
        (status = 200, description = "quantity, what is free, window", body = CampaignAnswer),
        (status = 400, description = "INVALID_CAMPAIGN", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "CAMPAIGN_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "REBUILDING, STATE_UNAVAILABLE", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn campaign(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, Problem> {
    show(&app, &name).await
}

/// A campaign of any namespace.
#[utoipa::path(
    get,
    path = "/campaigns/{namespace}/{name}",
    tag = "public",
    params(
        ("namespace" = String, Path, description = "its namespace"),
        ("name" = String, Path, description = "the campaign"),
    ),
    responses(
        (status = 200, description = "quantity, what is free, window", body = CampaignAnswer),
        (status = 400, description = "INVALID_CAMPAIGN", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "CAMPAIGN_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "REBUILDING, STATE_UNAVAILABLE", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn campaign_in_namespace(
    State(app): State<Arc<App>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Problem> {
    show(&app, &format!("{namespace}/{name}")).await
}

async fn show(app: &App, text: &str) -> Result<Response, Problem> {
    let campaign = app.campaigns.find(text).await?;
    let row = &campaign.row;
    let over = row
        .terms
        .closes_at
        .is_some_and(|closes_at| closes_at <= Timestamp::now());
    let Some(state) = campaign.numbers.read(&app.state, &row.name).await else {
        return Err(Problem::new(
            Code::StateUnavailable,
            "Redis could not be asked; try again",
        ));
    };
    let shown = match state.as_ref() {
        StateAnswer::Present(numbers) if numbers.campaign == row.id => CampaignAnswer {
            campaign: row.name.clone(),
            quantity: numbers.quantity,
            available: Some(numbers.available()),
            opens_at: numbers.opens_at,
            closes_at: numbers.closes_at,
            paused: numbers.status == StateStatus::Paused,
        },
        // Nobody needs the state any more: it has expired.
        StateAnswer::NotInitialized if over => CampaignAnswer {
            campaign: row.name.clone(),
            quantity: row.terms.quantity,
            available: None,
            opens_at: row.terms.opens_at,
            closes_at: row.terms.closes_at,
            paused: row.terms.paused,
        },
        StateAnswer::Present(_) | StateAnswer::Rebuilding { .. } | StateAnswer::NotInitialized => {
            return Err(Problem::new(
                Code::Rebuilding,
                "the numbers are not there yet; try again",
            ));
        }
    };
    answer::json(StatusCode::OK, &shown)
}
