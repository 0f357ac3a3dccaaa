//! The one error of this module: an `application/problem+json` answer (RFC 9457) with a stable `code`.

use std::{borrow::Cow, sync::LazyLock};

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use campaign::{identity::RequestId, name::NameError, postgres::database::DatabaseError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer;
use crate::{campaigns::LookupError, door::decision::Answer};

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
/// `Retry-After` is a random one of 1 to this many seconds, so that those who were refused together do not come
/// back together.
const RETRY_AFTER_MAX_SECONDS: u16 = 3;

const SOLD_OUT_DETAIL: &str = "every coupon of this campaign is taken";
/// What all but the winners of a sale are told: written once.
static SOLD_OUT_BODY: LazyLock<Bytes> = LazyLock::new(|| Problem::from(Answer::SoldOut).body());

/// What went wrong, for programs. Never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The user holds a coupon of this campaign, or held one that was canceled, by another request.
    Duplicate,
    /// No coupon is left.
    SoldOut,
    /// The campaign opens at `opensAt`.
    NotOpenYet,
    /// The campaign is over.
    Closed,
    /// The campaign is paused by its owner.
    Paused,
    /// No live campaign has this name.
    CampaignNotFound,
    /// The campaign's state is being built; nothing was reserved.
    Rebuilding,
    /// Too many claims are on their way; nothing was reserved.
    Overloaded,
    /// Kafka did not take the claim. With `outcome: unknown` it may have.
    CouponIssueKafkaError,
    /// Redis or Postgres could not be asked. With `outcome: unknown` it may have been done.
    StateUnavailable,
    /// No claim of this id is known.
    UnknownRequest,
    /// No coupon has this id or code.
    CouponNotFound,
    /// The coupon was used.
    AlreadyUsed,
    /// The coupon was canceled.
    AlreadyCanceled,
    /// The coupon is past its `validUntil`.
    Expired,
    /// The body is not the JSON that is wanted.
    InvalidBody,
    /// The user id is empty, too long or has control characters.
    InvalidUserId,
    /// The campaign is no `namespace/name`.
    InvalidCampaign,
    /// The request id is no UUID.
    InvalidRequestId,
    /// The coupon id is no UUID.
    InvalidCouponId,
    /// The header `Idempotency-Key` is not 1 to 255 visible ASCII characters.
    InvalidIdempotencyKey,
    /// The query lacks something, or has something that is unknown.
    InvalidQuery,
    /// The body is not `application/json`.
    UnsupportedMediaType,
    /// The body is larger than 16 KiB.
    BodyTooLarge,
    /// Nothing is at this path.
    NotFound,
    /// The path does not take this method.
    MethodNotAllowed,
    /// A defect of the server.
    Internal,
}

impl Code {
    fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "DUPLICATE",
            Self::SoldOut => "SOLD_OUT",
            Self::NotOpenYet => "NOT_OPEN_YET",
            Self::Closed => "CLOSED",
            Self::Paused => "PAUSED",
            Self::CampaignNotFound => "CAMPAIGN_NOT_FOUND",
            Self::Rebuilding => "REBUILDING",
            Self::Overloaded => "OVERLOADED",
            Self::CouponIssueKafkaError => "COUPON_ISSUE_KAFKA_ERROR",
            Self::StateUnavailable => "STATE_UNAVAILABLE",
            Self::UnknownRequest => "UNKNOWN_REQUEST",
            Self::CouponNotFound => "COUPON_NOT_FOUND",
            Self::AlreadyUsed => "ALREADY_USED",
            Self::AlreadyCanceled => "ALREADY_CANCELED",
            Self::Expired => "EXPIRED",
            Self::InvalidBody => "INVALID_BODY",
            Self::InvalidUserId => "INVALID_USER_ID",
            Self::InvalidCampaign => "INVALID_CAMPAIGN",
            Self::InvalidRequestId => "INVALID_REQUEST_ID",
            Self::InvalidCouponId => "INVALID_COUPON_ID",
            Self::InvalidIdempotencyKey => "INVALID_IDEMPOTENCY_KEY",
            Self::InvalidQuery => "INVALID_QUERY",
            Self::UnsupportedMediaType => "UNSUPPORTED_MEDIA_TYPE",
            Self::BodyTooLarge => "BODY_TOO_LARGE",
            Self::NotFound => "NOT_FOUND",
            Self::MethodNotAllowed => "METHOD_NOT_ALLOWED",
            Self::Internal => "INTERNAL",
        }
    }

    /// The status that goes with it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Duplicate | Self::AlreadyUsed | Self::AlreadyCanceled | Self::Expired => StatusCode::CONFLICT,
            Self::SoldOut => StatusCode::GONE,
            Self::NotOpenYet | Self::Closed | Self::Paused => StatusCode::FORBIDDEN,
            Self::CampaignNotFound | Self::UnknownRequest | Self::CouponNotFound | Self::NotFound => {
                StatusCode::NOT_FOUND
            }
            Self::Rebuilding | Self::Overloaded | Self::CouponIssueKafkaError | Self::StateUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::InvalidBody
            | Self::InvalidUserId
            | Self::InvalidCampaign
            | Self::InvalidRequestId
            | Self::InvalidCouponId
            | Self::InvalidIdempotencyKey
            | Self::InvalidQuery => StatusCode::BAD_REQUEST,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Duplicate => "The user has claimed in this campaign before",
            Self::SoldOut => "No coupon is left",
            Self::NotOpenYet => "The campaign is not open yet",
            Self::Closed => "The campaign is over",
            Self::Paused => "The campaign is paused",
            Self::CampaignNotFound => "There is no such campaign",
            Self::Rebuilding => "The campaign is being prepared",
            Self::Overloaded => "Too many claims at once",
            Self::CouponIssueKafkaError => "The claim was not taken on",
            Self::StateUnavailable => "The state cannot be asked",
            Self::UnknownRequest => "No such claim is known",
            Self::CouponNotFound => "There is no such coupon",
            Self::AlreadyUsed => "The coupon was used",
            Self::AlreadyCanceled => "The coupon was canceled",
            Self::Expired => "The coupon has expired",
            Self::InvalidBody => "The body is not valid",
            Self::InvalidUserId => "The user id is not valid",
            Self::InvalidCampaign => "The campaign's name is not valid",
            Self::InvalidRequestId => "The request id is not valid",
            Self::InvalidCouponId => "The coupon id is not valid",
            Self::InvalidIdempotencyKey => "The idempotency key is not valid",
            Self::InvalidQuery => "The query is not valid",
            Self::UnsupportedMediaType => "The body must be JSON",
            Self::BodyTooLarge => "The body is too large",
            Self::NotFound => "Not found",
            Self::MethodNotAllowed => "Method not allowed",
            Self::Internal => "Internal error",
        }
    }
}

/// What is known of what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It may or may not have been done: ask the status, or repeat with the same `Idempotency-Key`.
    Unknown,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    code: Code,
    detail: Cow<'static, str>,
    request_id: Option<RequestId>,
    outcome: Option<Outcome>,
    opens_at: Option<Timestamp>,
}

/// The body of a refusal.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProblemBody<'a> {
    /// `urn:coupon:problem:` and the code.
    #[serde(rename = "type")]
    type_uri: String,
    /// The same for all of this code.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// For programs.
    code: Code,
    /// For people.
    detail: &'a str,
    /// `DUPLICATE`: the request that holds the coupon. `outcome: unknown`: the request to ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    request_id: Option<RequestId>,
    /// Only where it is not known whether it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    /// `NOT_OPEN_YET`: when to come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    opens_at: Option<Timestamp>,
}

impl Problem {
    /// A refusal with its reason.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            detail: detail.into(),
            request_id: None,
            outcome: None,
            opens_at: None,
        }
    }

    /// The request that it is about.
    pub fn request(mut self, request: RequestId) -> Self {
        self.request_id = Some(request);
        self
    }

    /// It may have been done.
    pub fn unknown(mut self) -> Self {
        self.outcome = Some(Outcome::Unknown);
        self
    }

    fn body(&self) -> Bytes {
        let body = ProblemBody {
            type_uri: format!("urn:coupon:problem:{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status().as_u16(),
            code: self.code,
            detail: &self.detail,
            request_id: self.request_id,
            outcome: self.outcome,
            opens_at: self.opens_at,
        };
        // Strings and numbers only: this cannot fail, and an empty body would still carry the status.
        serde_json::to_vec(&body).unwrap_or_default().into()
    }

    /// Postgres could not be asked; nothing was to be changed.
    pub fn unread(error: &DatabaseError) -> Self {
        tracing::warn!(%error, "Postgres could not be read");
        Self::new(Code::StateUnavailable, "the database could not be asked; try again")
    }
}

/// `Ok` with the request for the two answers that are none: SUCCESS and PENDING are written by the claim's handler.
impl From<Answer> for Problem {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Duplicate(holder) => {
                Self::new(Code::Duplicate, "another request of this user came first").request(holder)
            }
            Answer::SoldOut => Self::new(Code::SoldOut, SOLD_OUT_DETAIL),
            Answer::NotOpenYet(opens_at) => Self {
                opens_at: Some(opens_at),
                ..Self::new(Code::NotOpenYet, "come back when it opens")
            },
            Answer::Closed => Self::new(Code::Closed, "this campaign takes no more claims"),
            Answer::Paused => Self::new(Code::Paused, "this campaign takes no claims for now"),
            Answer::Rebuilding => Self::new(Code::Rebuilding, "nothing was reserved; try again"),
            Answer::Overloaded => Self::new(Code::Overloaded, "nothing was reserved; try again"),
            Answer::KafkaError => Self::new(Code::CouponIssueKafkaError, "nothing stays reserved; try again"),
            Answer::KafkaUnknown(request) => Self::new(
                Code::CouponIssueKafkaError,
                "it is not known whether the claim is stored; ask its status",
            )
            .request(request)
            .unknown(),
            Answer::StateUnavailable => Self::new(Code::StateUnavailable, "nothing was reserved; try again"),
            Answer::StateUnknown(request) => Self::new(
                Code::StateUnavailable,
                "it is not known whether a coupon is reserved; if so it will be given back",
            )
            .request(request)
            .unknown(),
            // Not refusals: whoever turns one into a problem has made a mistake.
            Answer::Success(request) | Answer::Pending(request) => {
                Self::new(Code::Internal, "an accepted claim was answered as a problem").request(request)
            }
        }
    }
}

impl From<LookupError> for Problem {
    fn from(error: LookupError) -> Self {
        let code = match error {
            LookupError::Name(NameError::NotALabel { .. } | NameError::NoNamespace(_)) => Code::InvalidCampaign,
            LookupError::NotFound(_) => Code::CampaignNotFound,
            LookupError::Unknown(_) => Code::StateUnavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let body = if self.code == Code::SoldOut && self.detail == SOLD_OUT_DETAIL {
            SOLD_OUT_BODY.clone()
        } else {
            self.body()
        };
        let mut response = answer::bytes(status, PROBLEM_JSON, body);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = rand::random_range(1..=RETRY_AFTER_MAX_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_code_in_the_type_is_the_code_of_the_body() {
        for code in [Code::CouponIssueKafkaError, Code::SoldOut, Code::InvalidIdempotencyKey] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }

    #[test]
    fn only_503_says_when_to_come_back() {
        for answer in [
            Answer::Rebuilding,
            Answer::Overloaded,
            Answer::KafkaError,
            Answer::StateUnavailable,
        ] {
            let response = Problem::from(answer).into_response();
            let seconds: u16 = response.headers()[header::RETRY_AFTER]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            assert!((1..=RETRY_AFTER_MAX_SECONDS).contains(&seconds));
        }
        let response = Problem::from(Answer::SoldOut).into_response();
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
        assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    }
}
