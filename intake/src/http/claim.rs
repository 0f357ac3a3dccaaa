//! `POST /coupon-issues`: claims a coupon.

use std::{borrow::Cow, fmt::Write, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use campaign::{
    identity::{CampaignId, RequestId, UserId},
    name::CampaignName,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App, answer,
    problem::{Code, Problem, ProblemBody},
};
use crate::door::decision::Answer;

/// Largest body, in bytes.
const BODY_LIMIT: usize = 16 * 1024;
/// Longest `Idempotency-Key`, in characters.
const KEY_LIMIT: usize = 255;
/// Longest time for a body to come.
const BODY_TIME: Duration = Duration::from_secs(10);
const KEY_HEADER: &str = "idempotency-key";

/// A claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ClaimBody<'a> {
    /// `namespace/name`; a bare name means the installation's own namespace.
    #[serde(borrow)]
    #[schema(value_type = String, example = "black-friday")]
    campaign: Cow<'a, str>,
    /// 1 to 128 bytes, no control characters.
    #[schema(example = "user-42", min_length = 1, max_length = 128)]
    user_id: String,
}

/// What an accepted claim is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum ClaimResult {
    /// The coupon is the user's and will not be taken back; its row follows.
    Success,
    /// An earlier attempt of this very request is not decided yet: ask the status.
    Pending,
}

/// The answer to an accepted claim.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimAccepted {
    result: ClaimResult,
    /// The request, and the coupon's id to be.
    #[schema(value_type = uuid::Uuid)]
    request_id: RequestId,
}

/// Claims a coupon for a user.
///
/// SUCCESS means: a coupon is reserved and the claim is stored in Kafka. It is never taken back.
#[utoipa::path(
    post,
    path = "/coupon-issues",
    tag = "public",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "1 to 255 visible ASCII characters. The same key of the same user in the same campaign is the same request: repeat with it after a lost answer.")),
    request_body(content = ClaimBody, content_type = "application/json"),
    responses(
        (status = 202, description = "SUCCESS, or PENDING", body = ClaimAccepted,
            headers(("Location" = String, description = "where to ask for the status"))),
        (status = 400, description = "INVALID_BODY, INVALID_USER_ID, INVALID_CAMPAIGN, INVALID_IDEMPOTENCY_KEY", body = ProblemBody, content_type = "application/problem+json"),
        (status = 403, description = "NOT_OPEN_YET (with opensAt), CLOSED, PAUSED", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "CAMPAIGN_NOT_FOUND", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "DUPLICATE (with requestId)", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "SOLD_OUT", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "BODY_TOO_LARGE", body = ProblemBody, content_type = "application/problem+json"),
        (status = 415, description = "UNSUPPORTED_MEDIA_TYPE", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "REBUILDING, OVERLOADED, COUPON_ISSUE_KAFKA_ERROR, STATE_UNAVAILABLE; the last two may carry outcome: unknown and requestId", body = ProblemBody, content_type = "application/problem+json",
            headers(("Retry-After" = u16, description = "seconds, jittered"))),
    )
)]
pub(super) async fn claim(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    require_json(&head.headers)?;
    let bytes = read(&head.headers, body).await?;
    let body: ClaimBody<'_> =
        serde_json::from_slice(&bytes).map_err(|error| Problem::new(Code::InvalidBody, error.to_string()))?;
    let user = UserId::try_from(body.user_id).map_err(|error| Problem::new(Code::InvalidUserId, error.to_string()))?;
    let key = idempotency_key(&head.headers)?;
    let campaign = match app.campaigns.get(&body.campaign) {
        Some(campaign) => campaign,
        // In a box: its query would make the future of every claim, which is moved several times, as large as its own.
        None => Box::pin(app.campaigns.find(&body.campaign)).await?,
    };
    let request = request_id(campaign.row.id, &user, key);
    let answer = app.door.claim(&campaign, user.clone(), request, key.is_some()).await;
    let (result, request_id) = match answer {
        Answer::Success(request_id) => (ClaimResult::Success, request_id),
        Answer::Pending(request_id) => (ClaimResult::Pending, request_id),
        refused => return Err(refused.into()),
    };
    let mut response = answer::json(StatusCode::ACCEPTED, &ClaimAccepted { result, request_id })?;
    if let Ok(location) = HeaderValue::try_from(location(&campaign.row.name, &user, request_id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let essence = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|value| value.split(';').next().unwrap_or_default().trim());
    match essence {
        Some(essence) if essence.eq_ignore_ascii_case("application/json") => Ok(()),
        _ => Err(Problem::new(
            Code::UnsupportedMediaType,
            "send the claim with Content-Type: application/json",
        )),
    }
}

async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Code::BodyTooLarge, "a claim has at most 16 KiB");
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_LIMIT) {
        return Err(too_large());
    }
    let read = tokio::time::timeout(BODY_TIME, axum::body::to_bytes(body, BODY_LIMIT));
    let Ok(read) = read.await else {
        return Err(Problem::new(
            Code::InvalidBody,
            "the body did not come within 10 seconds",
        ));
    };
    read.map_err(|error| {
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(cause) = source {
            if cause.is::<http_body_util::LengthLimitError>() {
                return too_large();
            }
            source = cause.source();
        }
        Problem::new(Code::InvalidBody, "the body ended early")
    })
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let valid =
        values.next().is_none() && (1..=KEY_LIMIT).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    match value.to_str() {
        Ok(key) if valid => Ok(Some(key)),
        _ => Err(Problem::new(
            Code::InvalidIdempotencyKey,
            "send one Idempotency-Key of 1 to 255 visible ASCII characters",
        )),
    }
}

fn request_id(campaign: CampaignId, user: &UserId, key: Option<&str>) -> RequestId {
    match key {
        Some(key) => RequestId::from_key(campaign, user, key),
        None => RequestId::fresh(),
    }
}

/// Where the status of a request is asked for.
fn location(campaign: &CampaignName, user: &UserId, request: RequestId) -> String {
    let mut location = String::with_capacity(192);
    // Writing into a String cannot fail.
    let _ = write!(
        location,
        "/coupon-issues/{request}?campaign={}%2F{}&userId=",
        campaign.namespace(),
        campaign.name()
    );
    for byte in user.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            location.push(byte.into());
        } else {
            let _ = write!(location, "%{byte:02X}");
        }
    }
    location
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_location_survives_any_user_id() {
        let campaign = CampaignName::new("shop", "sale").unwrap();
        let user: UserId = "a b&c=ü/?#%".parse().unwrap();
        let text = location(&campaign, &user, RequestId(Uuid::nil()));
        assert_eq!(
            text,
            "/coupon-issues/00000000-0000-0000-0000-000000000000?campaign=shop%2Fsale&userId=a%20b%26c%3D%C3%BC%2F%3F%23%25"
        );
        assert!(HeaderValue::try_from(text).is_ok());
    }

    #[test]
    fn a_key_is_1_to_255_visible_ascii_characters() {
        let with = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(KEY_HEADER, HeaderValue::from_bytes(value).unwrap());
            }
            headers
        };
        assert_eq!(idempotency_key(&with(&[])), Ok(None));
        assert_eq!(idempotency_key(&with(&[b"k-1"])), Ok(Some("k-1")));
        assert!(idempotency_key(&with(&[&[b'k'; 255]])).is_ok());
        for bad in [
            &[b"".as_slice()][..],
            &[&[b'k'; 256]],
            &[b"a b"],
            &[b"a\tb"],
            &["ü".as_bytes()],
            &[b"a", b"b"],
        ] {
            assert!(idempotency_key(&with(bad)).is_err(), "{bad:?}");
        }
    }

    /// It is moved through several layers, once a request.
    #[test]
    fn the_future_of_a_claim_is_small() {
        fn size<F: Future>(_: impl FnOnce(State<Arc<App>>, Request) -> F) -> usize {
            size_of::<F>()
        }
        assert!(size(claim) <= 2 * 1024, "{} bytes", size(claim));
    }
}
