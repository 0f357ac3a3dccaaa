//! `GET /coupon-issues/{requestId}`: what became of a claim.

use std::sync::Arc;

use axum::{
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::Response,
};
use campaign::{
    identity::{CampaignId, RequestId, UserId},
    postgres::{coupon::Coupon, persist::Reason},
    redis::state::{Marker, MarkerAnswer},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    App, answer,
    problem::{Code, Problem, ProblemBody},
};

/// Whose request it is; `Location` of the claim's answer has both.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatusQuery {
    /// `namespace/name`; a bare name means the installation's own namespace.
    campaign: String,
    /// Who claimed.
    user_id: String,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum IssueStatus {
    /// Not decided yet.
    Pending,
    /// The coupon's row is there.
    Issued,
    /// There will be no coupon from this request as it stands.
    Rejected,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusAnswer {
    status: IssueStatus,
    #[schema(value_type = uuid::Uuid)]
    request_id: RequestId,
    /// `REJECTED`: why. `NOT_STORED`: the claim never reached Kafka and its slot is free again.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// What became of a claim: PENDING, ISSUED or REJECTED.
#[utoipa::path(
    get,
    path = "/coupon-issues/{requestId}",
    tag = "public",
    params(("requestId" = uuid::Uuid, Path, description = "of the claim's answer"), StatusQuery),
    responses(
        (status = 200, description = "PENDING, ISSUED or REJECTED", body = StatusAnswer),
        (status = 400, description = "INVALID_REQUEST_ID, INVALID_QUERY, INVALID_USER_ID, INVALID_CAMPAIGN", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "UNKNOWN_REQUEST, CAMPAIGN_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "STATE_UNAVAILABLE", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn status(
    State(app): State<Arc<App>>,
    Path(request): Path<String>,
    query: Result<Query<StatusQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let request: RequestId = request
        .parse()
        .map_err(|_| Problem::new(Code::InvalidRequestId, "a request id is a UUID"))?;
    let Query(query) = query.map_err(|error| Problem::new(Code::InvalidQuery, error.body_text()))?;
    let user: UserId = query
        .user_id
        .parse()
        .map_err(|error: campaign::identity::IdentityError| Problem::new(Code::InvalidUserId, error.to_string()))?;
    let campaign = app.campaigns.find(&query.campaign).await?;
    let read = |error| Problem::unread(&error);

    if issued(
        app.database.coupon(request).await.map_err(read)?,
        campaign.row.id,
        &user,
    ) {
        return answer(request, Finding::Issued);
    }
    let marker = match app.state.marker(&campaign.row.name, &user).await {
        Ok(MarkerAnswer::Present(marker)) => Known(holds(marker.as_ref(), request)),
        Ok(MarkerAnswer::Unknown) => Unreadable,
        Err(error) => {
            tracing::warn!(campaign = %campaign.row.name, %error, "a marker could not be read");
            Unreadable
        }
    };
    if marker == Known(Held::Pending) {
        return answer(request, Finding::Pending);
    }
    // The claim may have been persisted since the first look, and its marker canceled or released after that: what
    // Postgres says after the marker is newer than the marker.
    let issued = issued(
        app.database.coupon(request).await.map_err(read)?,
        campaign.row.id,
        &user,
    );
    let rejection = if issued {
        None
    } else {
        app.database.rejection(request, &user).await.map_err(read)?
    };
    answer(request, judge(request, issued, marker, rejection))
}

use Reading::{Known, Unreadable};

/// What Redis said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading<T> {
    Known(T),
    /// Nothing: unknown is not absent.
    Unreadable,
}

/// What a user's marker says about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// It holds a slot.
    Pending,
    /// It does not.
    Nothing,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Issued,
    Pending,
    Rejected(Reason),
    Unknown,
    CannotTell,
}

fn issued(coupon: Option<Coupon>, campaign: CampaignId, user: &UserId) -> bool {
    // Somebody else's request is none of the caller's business.
    coupon.is_some_and(|coupon| coupon.campaign == campaign && coupon.user == *user)
}

fn holds(marker: Option<&Marker>, request: RequestId) -> Held {
    match marker {
        Some(Marker::Holds(holder, _)) if *holder == request => Held::Pending,
        // A canceled marker's coupon has a row, which is found by itself.
        _ => Held::Nothing,
    }
}

fn judge(request: RequestId, issued: bool, marker: Reading<Held>, rejection: Option<Reason>) -> Finding {
    // Only a request with a key can be tried again: its newest attempt may be pending although an older was rejected.
    let repeatable = request.0.get_version_num() != 7;
    match (issued, marker, rejection) {
        (true, _, _) => Finding::Issued,
        (_, Known(Held::Pending), _) => Finding::Pending,
        (_, Unreadable, Some(_)) if repeatable => Finding::CannotTell,
        (_, _, Some(reason)) => Finding::Rejected(reason),
        (_, Known(Held::Nothing), None) => Finding::Unknown,
        (_, Unreadable, None) => Finding::CannotTell,
    }
}

fn answer(request_id: RequestId, finding: Finding) -> Result<Response, Problem> {
    let (status, reason) = match finding {
        Finding::Issued => (IssueStatus::Issued, None),
        Finding::Pending => (IssueStatus::Pending, None),
        Finding::Rejected(reason) => (IssueStatus::Rejected, Some(reason.as_str())),
        Finding::Unknown => {
            return Err(
                Problem::new(Code::UnknownRequest, "this user has no such request in this campaign")
                    .request(request_id),
            );
        }
        Finding::CannotTell => {
            return Err(Problem::new(
                Code::StateUnavailable,
                "the claim may be pending, but Redis could not be asked; try again",
            )
            .request(request_id));
        }
    };
    answer::json(
        StatusCode::OK,
        &StatusAnswer {
            status,
            request_id,
            reason,
        },
    )
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn unknown_is_neither_absent_nor_rejected() {
        let fresh = RequestId::fresh();
        let keyed = RequestId(Uuid::new_v5(&Uuid::nil(), b"key"));
        let rejected = Some(Reason::NotStored);
        let table = [
            (fresh, true, Unreadable, None, Finding::Issued),
            (keyed, true, Known(Held::Nothing), rejected, Finding::Issued),
            (fresh, false, Known(Held::Pending), None, Finding::Pending),
            (keyed, false, Known(Held::Pending), rejected, Finding::Pending),
            (
                fresh,
                false,
                Known(Held::Nothing),
                rejected,
                Finding::Rejected(Reason::NotStored),
            ),
            (
                keyed,
                false,
                Known(Held::Nothing),
                rejected,
                Finding::Rejected(Reason::NotStored),
            ),
            (fresh, false, Unreadable, rejected, Finding::Rejected(Reason::NotStored)),
            (keyed, false, Unreadable, rejected, Finding::CannotTell),
            (fresh, false, Known(Held::Nothing), None, Finding::Unknown),
            (fresh, false, Unreadable, None, Finding::CannotTell),
            (keyed, false, Unreadable, None, Finding::CannotTell),
        ];
        for (request, issued, marker, rejection, finding) in table {
            assert_eq!(
                judge(request, issued, marker, rejection),
                finding,
                "{request} issued={issued} {marker:?} {rejection:?}"
            );
        }
    }
}
