//! Table `outbox`: events that wait to be published. A row is removed once it is published and, for a cancel with
//! `Restock`, once Redis confirmed the restock. Rows are found by being there, not by a position: a late commit is
//! not lost.

use super::database::{Database, DatabaseError};
use crate::{event::LifecycleEvent, identity::Epoch};

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its key.
    pub id: i64,
    /// What to publish.
    pub event: LifecycleEvent,
    /// Whether the slot must be restocked before the row may go.
    pub restock: bool,
}

impl Database {
    /// The oldest rows, at most one a coupon, so that a failed publish cannot let a later event of its coupon pass.
    pub async fn outbox_next(&self, limit: i64) -> Result<Vec<OutboxRow>, DatabaseError> {
        let _ = limit;
        unimplemented!()
    }

    /// Removes what is done.
    pub async fn outbox_done(&self, ids: &[i64]) -> Result<(), DatabaseError> {
        let _ = ids;
        unimplemented!()
    }

    /// The epoch of a campaign now (for restock), `None` if archived or gone.
    pub async fn epoch_of(&self, campaign: crate::identity::CampaignId) -> Result<Option<Epoch>, DatabaseError> {
        let _ = campaign;
        unimplemented!()
    }

    /// How many rows wait.
    pub async fn outbox_len(&self) -> Result<i64, DatabaseError> {
        unimplemented!()
    }
}
