//! Internal calls on coupons: list, use, cancel. The slot of a canceled coupon is restocked by the worker's relay.

use std::sync::Arc;

use axum::{
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::Response,
};
use campaign::{
    identity::{IdentityError, RequestId, UserId},
    name::CampaignName,
    postgres::{
        coupon::{Coupon, CouponKey, CouponStatus, Redemption},
        database::DatabaseError,
    },
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::{
    App, answer,
    problem::{Code, Problem, ProblemBody},
};

const PAGE_DEFAULT: u16 = 50;
const PAGE_MAX: u16 = 200;
/// No code is longer: what is, is not asked for.
const CODE_MAX_BYTES: usize = 200;

/// Which coupons.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Whose.
    user_id: String,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
    /// Most coupons of a page: 1 to 200, 50 where it is not given.
    limit: Option<u16>,
}

/// A coupon.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CouponAnswer {
    /// The id of the request that won it.
    #[schema(value_type = Uuid)]
    id: RequestId,
    /// `namespace/name`.
    #[schema(value_type = String)]
    campaign: CampaignName,
    #[schema(value_type = String)]
    user_id: UserId,
    /// What is shown at the till.
    code: String,
    /// `ISSUED`, `USED` or `CANCELED`.
    status: &'static str,
    #[schema(value_type = String, format = DateTime)]
    issued_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    used_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    canceled_at: Option<Timestamp>,
    /// Past this it can be neither used nor canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    valid_until: Option<Timestamp>,
    /// What it is worth: `type` (`Percentage`, or `Amount` in the smallest unit of the shop's currency) and `value`, as its
    /// campaign says; absent where it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    discount: Option<Value>,
    /// The `coupon.metadata` of its campaign, as it is now.
    #[schema(value_type = BTreeMap<String, String>)]
    metadata: Value,
}

/// A page of coupons, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CouponPage {
    coupons: Vec<CouponAnswer>,
    /// For the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl From<Coupon> for CouponAnswer {
    fn from(mut coupon: Coupon) -> Self {
        let mut detail = |name| {
            coupon
                .details
                .get_mut(name)
                .map(Value::take)
                .filter(|value| !value.is_null())
        };
        Self {
            discount: detail("discount"),
            metadata: detail("metadata").unwrap_or_else(|| json!({})),
            id: coupon.id,
            campaign: coupon.campaign_name,
            user_id: coupon.user,
            code: coupon.code,
            status: coupon.status.as_str(),
            issued_at: coupon.issued_at,
            used_at: coupon.used_at,
            canceled_at: coupon.canceled_at,
            valid_until: coupon.valid_until,
        }
    }
}

/// A user's coupons, newest first.
#[utoipa::path(
    get,
    path = "/coupons",
    tag = "internal",
    params(ListQuery),
    responses(
        (status = 200, description = "a page", body = CouponPage),
        (status = 400, description = "INVALID_QUERY, INVALID_USER_ID", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "STATE_UNAVAILABLE", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| Problem::new(Code::InvalidQuery, error.body_text()))?;
    let user: UserId = query
        .user_id
        .parse()
        .map_err(|error: IdentityError| Problem::new(Code::InvalidUserId, error.to_string()))?;
    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::new(Code::InvalidQuery, "limit is 1 to 200"));
    }
    let after = match query.cursor {
        Some(cursor) => Some(
            read_cursor(&cursor)
                .ok_or_else(|| Problem::new(Code::InvalidQuery, "cursor is not the nextCursor of a page"))?,
        ),
        None => None,
    };
    // One more than asked for tells whether there is a next page.
    let mut coupons = app
        .database
        .coupons_of(&user, after, i64::from(limit) + 1)
        .await
        .map_err(|error| Problem::unread(&error))?;
    let more = coupons.len() > usize::from(limit);
    coupons.truncate(limit.into());
    let next_cursor = coupons.last().filter(|_| more).map(write_cursor);
    let coupons = coupons.into_iter().map(Into::into).collect();
    answer::json(StatusCode::OK, &CouponPage { coupons, next_cursor })
}

/// Redeems a coupon by its id.
#[utoipa::path(
    post,
    path = "/coupons/{id}/use",
    tag = "internal",
    params(("id" = Uuid, Path, description = "the coupon's id")),
    responses(
        (status = 200, description = "used, the only time", body = CouponAnswer),
        (status = 400, description = "INVALID_COUPON_ID", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "COUPON_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "ALREADY_USED, ALREADY_CANCELED, EXPIRED", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "STATE_UNAVAILABLE with outcome: unknown: it may have been done", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn use_by_id(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let key = CouponKey::Id(coupon_id(&id)?);
    redeemed(app.database.use_coupon(&key).await)
}

/// Redeems a coupon by its code.
#[utoipa::path(
    post,
    path = "/coupons/by-code/{code}/use",
    tag = "internal",
    params(("code" = String, Path, description = "the coupon's code")),
    responses(
        (status = 200, description = "used, the only time", body = CouponAnswer),
        (status = 404, description = "COUPON_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "ALREADY_USED, ALREADY_CANCELED, EXPIRED", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "STATE_UNAVAILABLE with outcome: unknown: it may have been done", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn use_by_code(State(app): State<Arc<App>>, Path(code): Path<String>) -> Result<Response, Problem> {
    // Codes are printable ASCII; Postgres would refuse a NUL as data.
    if code.len() > CODE_MAX_BYTES || !code.bytes().all(|byte| byte.is_ascii_graphic()) {
        return redeemed(Ok(Redemption::NotFound));
    }
    redeemed(app.database.use_coupon(&CouponKey::Code(code)).await)
}

/// Cancels a coupon.
#[utoipa::path(
    post,
    path = "/coupons/{id}/cancel",
    tag = "internal",
    params(("id" = Uuid, Path, description = "the coupon's id")),
    responses(
        (status = 200, description = "canceled, the only time", body = CouponAnswer),
        (status = 400, description = "INVALID_COUPON_ID", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "COUPON_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "ALREADY_USED, ALREADY_CANCELED, EXPIRED", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "STATE_UNAVAILABLE with outcome: unknown: it may have been done", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Problem> {
    redeemed(app.database.cancel_coupon(coupon_id(&id)?).await)
}

fn coupon_id(text: &str) -> Result<RequestId, Problem> {
    text.parse()
        .map_err(|_| Problem::new(Code::InvalidCouponId, "a coupon's id is a UUID"))
}

fn redeemed(result: Result<Redemption, DatabaseError>) -> Result<Response, Problem> {
    match result {
        Ok(Redemption::Done(coupon)) => answer::json(StatusCode::OK, &CouponAnswer::from(coupon)),
        Ok(Redemption::WrongStatus(coupon)) => Err(match coupon.status {
            CouponStatus::Canceled => Problem::new(Code::AlreadyCanceled, "it was canceled before"),
            CouponStatus::Used | CouponStatus::Issued => Problem::new(Code::AlreadyUsed, "it was used before"),
        }),
        Ok(Redemption::Expired(_)) => Err(Problem::new(Code::Expired, "it was valid until its validUntil")),
        Ok(Redemption::NotFound) => Err(Problem::new(Code::CouponNotFound, "no coupon has this id or code")),
        Err(error) => {
            tracing::warn!(%error, "a coupon could not be used or canceled");
            // The answer to the commit may be what was lost.
            Err(Problem::new(
                Code::StateUnavailable,
                "the database did not answer; it may have been done: list the coupons",
            )
            .unknown())
        }
    }
}

/// `(issued_at in µs, id)` of a page's last coupon.
type Cursor = (i64, Uuid);

fn write_cursor(coupon: &Coupon) -> String {
    format!("{}_{}", coupon.issued_at.as_microsecond(), coupon.id)
}

fn read_cursor(text: &str) -> Option<Cursor> {
    let (at, id) = text.split_once('_')?;
    Some((at.parse().ok()?, id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_what_a_page_gave() {
        let id = Uuid::now_v7();
        assert_eq!(
            read_cursor(&format!("1700000000000001_{id}")),
            Some((1_700_000_000_000_001, id))
        );
        for bad in ["", "_", "x_y", "1700000000000001", "1_2"] {
            assert_eq!(read_cursor(bad), None, "{bad:?}");
        }
    }
}
