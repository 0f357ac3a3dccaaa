//! Events of a coupon's life, as they stand in the outbox and on `coupon.lifecycle`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    identity::{CampaignId, RequestId, UserId},
    name::CampaignName,
};

/// What happened to a coupon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventType {
    /// The row came to be.
    #[serde(rename = "COUPON_ISSUED")]
    Issued,
    /// It was redeemed.
    #[serde(rename = "COUPON_USED")]
    Used,
    /// It was canceled.
    #[serde(rename = "COUPON_CANCELED")]
    Canceled,
}

impl EventType {
    /// The name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "COUPON_ISSUED",
            Self::Used => "COUPON_USED",
            Self::Canceled => "COUPON_CANCELED",
        }
    }

    /// Each of these happens to a coupon at most once, so its event's id follows from the coupon's: when Postgres was
    /// put back and a row is written again, its event is the same event.
    pub fn event_id(self, coupon: RequestId) -> Uuid {
        Uuid::new_v5(&coupon.0, self.as_str().as_bytes())
    }
}

impl std::str::FromStr for EventType {
    type Err = UnknownEventType;

    fn from_str(text: &str) -> Result<Self, UnknownEventType> {
        match text {
            "COUPON_ISSUED" => Ok(Self::Issued),
            "COUPON_USED" => Ok(Self::Used),
            "COUPON_CANCELED" => Ok(Self::Canceled),
            other => Err(UnknownEventType(other.to_owned())),
        }
    }
}

/// A type from another release.
#[derive(Debug, thiserror::Error)]
#[error("unknown event type {0:?}")]
pub struct UnknownEventType(String);

/// One event; the value on `coupon.lifecycle`, keyed by coupon id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LifecycleEvent {
    /// The record's version, 1.
    pub v: u32,
    /// Unique; a repeat has the same.
    pub event_id: Uuid,
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// The coupon's (and its request's) id.
    pub coupon_id: RequestId,
    /// `namespace/name`.
    pub campaign: CampaignName,
    /// The campaign's id.
    pub campaign_id: CampaignId,
    /// Whose coupon it is.
    pub user_id: UserId,
    /// When it happened, in ms by Postgres' clock.
    pub occurred_at: i64,
}
