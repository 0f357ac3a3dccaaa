//! The worker's transaction: batches, coupons, events, rejections and offsets, or nothing.

use std::collections::{HashMap, HashSet};

use super::database::{Database, DatabaseError};
use crate::{
    identity::{BatchId, CampaignId, RequestId, Reservation, UserId},
    name::CampaignName,
    record::ClaimRecord,
};

/// A record and where it was read.
#[derive(Clone, Debug)]
pub struct LocatedRecord {
    /// Partition of `coupon.issue.requests`.
    pub partition: i32,
    /// Offset in that partition.
    pub offset: i64,
    /// What it says.
    pub record: ClaimRecord,
}

/// Why a stored claim got no row. Names as in table `rejection` and metric `success_revoked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Reserved in a life of the state that ended before the record was stored; nobody was told SUCCESS.
    StaleEpoch,
    /// Another request of this user has the coupon. Cannot happen while the rules hold.
    AlreadyIssued,
    /// No room in the database. Cannot happen while the rules hold.
    OutOfStock,
    /// The campaign is archived or was never known.
    CampaignGone,
    /// Its data was refused and the campaign's policy is `Release`.
    DeadLettered,
    /// The sweeper found the batch in no record.
    NotStored,
    /// A parked dead letter was discarded by hand.
    Discarded,
}

impl Reason {
    /// The name in the database, in answers and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StaleEpoch => "STALE_EPOCH",
            Self::AlreadyIssued => "ALREADY_ISSUED",
            Self::OutOfStock => "OUT_OF_STOCK",
            Self::CampaignGone => "CAMPAIGN_GONE",
            Self::DeadLettered => "DEAD_LETTERED",
            Self::NotStored => "NOT_STORED",
            Self::Discarded => "DISCARDED",
        }
    }
}

/// How far a partition's low-water mark moves with this transaction: compare and set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// The partition.
    pub partition: i32,
    /// What `consumed` must hold now (0 where there is no row).
    pub from: i64,
    /// What it holds afterwards.
    pub to: i64,
}

/// One transaction's worth.
#[derive(Clone, Debug)]
pub struct PersistRequest<'a> {
    /// The topic that the records and `consumed` belong to.
    pub topic: &'a str,
    /// Whose claims; all records have this id.
    pub campaign: CampaignId,
    /// The fencing token of the lock.
    pub token: i64,
    /// In the order to be decided.
    pub records: &'a [LocatedRecord],
    /// Claims whose data is refused, with what the database said: parked or rejected by the campaign's policy.
    pub dead: &'a HashMap<Reservation, String>,
    /// Low-water marks to move.
    pub advances: &'a [Advance],
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persisted {
    /// Batches that this transaction decided.
    pub decided: Vec<BatchId>,
    /// Batches that had been decided before: read their outcome with `decided_batches` and release and settle as stored.
    pub already_decided: HashSet<BatchId>,
    /// Coupons that came to be.
    pub issued: u64,
    /// Claims without a row, to be released.
    pub rejected: Vec<(UserId, RequestId, Reservation, Reason)>,
    /// Dead letters whose slot stays taken.
    pub parked: u64,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// A later holder of the lock has written: this one lost it.
    #[error("the lock's token {token} is older than {fence}, which has written to campaign {campaign}")]
    Fenced {
        /// Whose row.
        campaign: CampaignName,
        /// Ours.
        token: i64,
        /// Theirs.
        fence: i64,
    },
    /// `consumed` holds another offset: somebody else has the partition, or Postgres was put back. Seek there.
    #[error("partition {partition} is consumed up to {stored}, not {expected}")]
    Moved {
        /// Which.
        partition: i32,
        /// What the caller thought.
        expected: i64,
        /// What is stored.
        stored: i64,
    },
    /// More than 20 dead letters a minute: the campaign waits.
    #[error("campaign {campaign} had {count} dead letters within a minute: its claims wait")]
    TooManyDeadLetters {
        /// Whose.
        campaign: CampaignName,
        /// How many with this transaction's.
        count: i64,
    },
    /// Postgres said no; see there whether to try again.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Database {
    /// Decides the records; see the worker's table in the design.
    pub async fn persist(&self, request: &PersistRequest<'_>) -> Result<Persisted, PersistError> {
        let _ = request;
        unimplemented!()
    }

    /// Tries to insert these claims' rows and rolls back: which data is refused?
    pub async fn try_rows(&self, record: &ClaimRecord, claims: &[usize]) -> Result<(), DatabaseError> {
        let _ = (record, claims);
        unimplemented!()
    }

    /// Moves low-water marks without records (undecodable bytes, records already decided).
    pub async fn advance(&self, topic: &str, advances: &[Advance]) -> Result<(), PersistError> {
        let _ = (topic, advances);
        unimplemented!()
    }
}
