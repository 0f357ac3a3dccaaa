//! Table `batch`: whoever writes it first has decided.

use std::collections::HashMap;

use super::{
    database::{Database, DatabaseError},
    persist::Reason,
};
use crate::identity::{BatchId, CampaignId, RequestId, Reservation, UserId};

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// Its record was persisted.
    Stored,
    /// The sweeper found it in no record.
    Abandoned,
    /// Its record came after the cut of a later epoch.
    Stale,
}

/// What `abandon` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandon {
    /// Written (or it was abandoned before).
    Abandoned,
    /// Somebody else decided otherwise: read again.
    Decided(BatchOutcome),
    /// `consumed` is behind what the sweeper saw, as after a restore: start anew.
    ConsumedBehind,
}

impl Database {
    /// The decided ones among these.
    pub async fn decided_batches(
        &self,
        campaign: CampaignId,
        batches: &[BatchId],
    ) -> Result<HashMap<BatchId, BatchOutcome>, DatabaseError> {
        let _ = (campaign, batches);
        unimplemented!()
    }

    /// Claims of decided batches that have no row, to be released: from `rejection` (the user from there).
    pub async fn rejected_claims(
        &self,
        campaign: CampaignId,
        batches: &[BatchId],
    ) -> Result<Vec<(UserId, Reservation)>, DatabaseError> {
        let _ = (campaign, batches);
        unimplemented!()
    }

    /// Writes a batch as abandoned with a rejection `NOT_STORED` for each claim: locks the campaign row, and reads `consumed` of `topic` again:
    /// every partition of `seen` must be at least there.
    pub async fn abandon(
        &self,
        topic: &str,
        campaign: CampaignId,
        batch: &BatchId,
        claims: &[(UserId, RequestId, Reservation)],
        seen: &HashMap<i32, i64>,
    ) -> Result<Abandon, DatabaseError> {
        let _ = (topic, campaign, batch, claims, seen);
        unimplemented!()
    }

    /// The newest rejection of a request.
    pub async fn rejection(&self, request: RequestId, user: &UserId) -> Result<Option<Reason>, DatabaseError> {
        let _ = (request, user);
        unimplemented!()
    }
}
