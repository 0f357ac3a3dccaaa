//! Step 4 of a rebuild: one transaction (REPEATABLE READ, the campaign row locked) that stores the cut and reads
//! everything from one snapshot.

use std::collections::{HashMap, HashSet};

use super::{
    campaign::CampaignRow,
    database::{Database, DatabaseError},
};
use crate::{
    identity::{BatchId, CampaignId, Epoch},
    redis::state::RebuiltEntry,
};

/// The open transaction. Dropping it stores nothing.
pub struct Snapshot {}

/// What `begin_snapshot` came to.
pub enum SnapshotStart {
    /// Open.
    Open(Box<Snapshot>),
    /// Our epoch is no longer the newest, or the campaign is gone: stop.
    Superseded,
}

impl Database {
    /// Locks the campaign row, checks that `epoch` is the newest, stores `cut` (end offset by partition).
    pub async fn begin_snapshot(
        &self,
        topic: &str,
        campaign: CampaignId,
        epoch: Epoch,
        cut: &HashMap<i32, i64>,
    ) -> Result<SnapshotStart, DatabaseError> {
        let _ = (topic, campaign, epoch, cut);
        unimplemented!()
    }
}

impl Snapshot {
    /// The campaign as of the snapshot.
    pub fn campaign(&self) -> &CampaignRow {
        unimplemented!()
    }

    /// `consumed` as of the snapshot.
    pub fn consumed(&self) -> &HashMap<i32, i64> {
        unimplemented!()
    }

    /// Cuts of all epochs: epoch → partition → end offset (ours included).
    pub fn cuts(&self) -> &HashMap<Epoch, HashMap<i32, i64>> {
        unimplemented!()
    }

    /// The next entries that rows stand for (holders, canceled ones, parked and not discarded ones), at most `limit`; empty at the end.
    /// Keyset pages by user, so that a million of them never lie in memory.
    pub async fn next_entries(&mut self, limit: usize) -> Result<Vec<RebuiltEntry>, DatabaseError> {
        let _ = limit;
        unimplemented!()
    }

    /// Which of these batches are decided.
    pub async fn decided(&mut self, batches: &[BatchId]) -> Result<HashSet<BatchId>, DatabaseError> {
        let _ = batches;
        unimplemented!()
    }

    /// Commits (the cut is stored for ever).
    pub async fn commit(self) -> Result<(), DatabaseError> {
        unimplemented!()
    }
}
