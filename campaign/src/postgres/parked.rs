//! Table `parked`: dead letters whose slot stays taken.

use jiff::Timestamp;

use super::database::{Database, DatabaseError};
use crate::{
    identity::{CampaignId, RequestId, Reservation, UserId},
    name::CampaignName,
};

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedClaim {
    /// The attempt.
    pub reservation: Reservation,
    /// Its request.
    pub request: RequestId,
    /// Its campaign.
    pub campaign: CampaignId,
    /// Its campaign's name.
    pub campaign_name: CampaignName,
    /// Who claimed.
    pub user: UserId,
    /// What the database said.
    pub reason: String,
    /// When it was parked.
    pub parked_at: Timestamp,
    /// Discarded, and waiting for its release to be confirmed.
    pub discarded: bool,
}

/// What replay came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The coupon came to be.
    Issued,
    /// The user has a coupon already; the entry stays: discard it.
    AlreadyIssued,
    /// No such entry (or it is discarded).
    NotFound,
}

impl Database {
    /// Entries of a campaign (all campaigns if `None`), oldest first.
    pub async fn parked(&self, campaign: Option<CampaignId>) -> Result<Vec<ParkedClaim>, DatabaseError> {
        let _ = campaign;
        unimplemented!()
    }

    /// Makes a parked claim a coupon, with its event: a transaction, not a record, since its batch is decided.
    pub async fn replay_parked(
        &self,
        campaign: CampaignId,
        reservation: &Reservation,
    ) -> Result<Replay, DatabaseError> {
        let _ = (campaign, reservation);
        unimplemented!()
    }

    /// Rejects a parked claim as `DISCARDED`; its entry stays, marked, until `forget_parked`. False: no such entry.
    pub async fn discard_parked(&self, campaign: CampaignId, reservation: &Reservation) -> Result<bool, DatabaseError> {
        let _ = (campaign, reservation);
        unimplemented!()
    }

    /// Discarded entries whose release Redis has not confirmed.
    pub async fn discarded(&self) -> Result<Vec<ParkedClaim>, DatabaseError> {
        unimplemented!()
    }

    /// Removes discarded entries whose release is confirmed.
    pub async fn forget_parked(&self, campaign: CampaignId, reservations: &[Reservation]) -> Result<(), DatabaseError> {
        let _ = (campaign, reservations);
        unimplemented!()
    }
}
