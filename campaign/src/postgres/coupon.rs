//! Table `coupon`: reading, using and canceling.

use jiff::Timestamp;
use uuid::Uuid;

use super::database::{Database, DatabaseError};
use crate::{
    identity::{CampaignId, RequestId, Reservation, UserId},
    name::CampaignName,
};

/// `coupon.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CouponStatus {
    /// May be used or canceled.
    Issued,
    /// Redeemed.
    Used,
    /// Canceled.
    Canceled,
}

impl CouponStatus {
    /// The name in the database and in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "ISSUED",
            Self::Used => "USED",
            Self::Canceled => "CANCELED",
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coupon {
    /// The request's id.
    pub id: RequestId,
    /// Its campaign.
    pub campaign: CampaignId,
    /// Its campaign's name.
    pub campaign_name: CampaignName,
    /// Whose.
    pub user: UserId,
    /// What is shown at the till.
    pub code: String,
    /// The attempt that won it.
    pub reservation: Reservation,
    /// Where it stands.
    pub status: CouponStatus,
    /// When the row was written.
    pub issued_at: Timestamp,
    /// When it was used, if it was.
    pub used_at: Option<Timestamp>,
    /// When it was canceled, if it was.
    pub canceled_at: Option<Timestamp>,
    /// Past this it can be neither used nor canceled.
    pub valid_until: Option<Timestamp>,
}

/// How to find one.
#[derive(Clone, Debug)]
pub enum CouponKey {
    /// By id.
    Id(RequestId),
    /// By code.
    Code(String),
}

/// What use or cancel came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redemption {
    /// Done, with its event; the coupon as it is now.
    Done(Coupon),
    /// It was used or canceled before; the coupon as it is.
    WrongStatus(Coupon),
    /// Past `valid_until`.
    Expired(Coupon),
    /// No such coupon.
    NotFound,
}

impl Database {
    /// By id.
    pub async fn coupon(&self, id: RequestId) -> Result<Option<Coupon>, DatabaseError> {
        let _ = id;
        unimplemented!()
    }

    /// A user's coupons, newest first, after the cursor `(issued_at in µs, id)`, at most `limit`.
    pub async fn coupons_of(
        &self,
        user: &UserId,
        after: Option<(i64, Uuid)>,
        limit: i64,
    ) -> Result<Vec<Coupon>, DatabaseError> {
        let _ = (user, after, limit);
        unimplemented!()
    }

    /// `ISSUED → USED`, once, with its event in the same transaction.
    pub async fn use_coupon(&self, key: &CouponKey) -> Result<Redemption, DatabaseError> {
        let _ = key;
        unimplemented!()
    }

    /// `ISSUED → CANCELED`, once, with its event; `Restock` lowers `issued` in the same transaction.
    pub async fn cancel_coupon(&self, id: RequestId) -> Result<Redemption, DatabaseError> {
        let _ = id;
        unimplemented!()
    }
}
