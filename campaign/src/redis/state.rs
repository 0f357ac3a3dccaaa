//! The state of a campaign: the transitions of `lua/` as methods.

use jiff::Timestamp;

use super::connection::{Redis, RedisError};
use crate::{
    identity::{BatchId, CampaignId, Epoch, RequestId, Reservation, UserId},
    name::CampaignName,
    naming::Naming,
};

/// Speaks the transitions of a campaign's state.
#[derive(Clone)]
pub struct StateStore {}

/// What a whole reserve call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveAnswer {
    /// Each claim was judged.
    Judged(Reserved),
    /// The campaign takes no claims now; nothing was reserved.
    Refused(Refusal),
}

/// A judged reserve call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The campaign that this state belongs to.
    pub campaign: CampaignId,
    /// The life of this state.
    pub epoch: Epoch,
    /// By Redis' clock, in ms.
    pub at_ms: i64,
    /// One a claim, in the order given.
    pub outcomes: Vec<ReserveOutcome>,
}

/// What one claim came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// A slot is reserved for this attempt.
    Success,
    /// Another request of this user holds a slot, or held one and was canceled.
    Duplicate(RequestId),
    /// No slot is free.
    SoldOut,
    /// This very request holds a slot and its batch has been settled.
    Settled,
    /// This very request is pending in another batch.
    InFlight,
}

/// Why a whole call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A key is missing, or the state was built on another server: unknown, not empty.
    NotInitialized,
    /// A rebuild is under way.
    Rebuilding,
    /// The window opens later.
    NotOpenYet(Timestamp),
    /// The window is over.
    Closed,
    /// Paused by the campaign's owner.
    Paused,
}

/// What release, settle and restock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Done; how many slots (release, restock) or batches (settle) changed. 0 when it was done before.
    Done(u64),
    /// Try again after the rebuild (restock: also when the epoch is another one).
    Rebuilding,
    /// No state, or one of another server: nothing was done, the rebuild reads the truth.
    NotInitialized,
}

/// The numbers of a campaign, from one script call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateNumbers {
    /// The campaign that this state belongs to.
    pub campaign: CampaignId,
    /// The life of this state.
    pub epoch: Epoch,
    /// Version of quantity and window; see `configure`.
    pub revision: i64,
    /// Open, paused or rebuilding.
    pub status: StateStatus,
    /// As configured.
    pub quantity: i64,
    /// Slots taken: pending, issued and parked.
    pub taken: i64,
    /// Claims that are reserved and not yet settled.
    pub pending: i64,
    /// When the oldest pending batch was reserved, in ms by Redis' clock.
    pub oldest_pending_ms: Option<i64>,
    /// Redis' clock, in ms.
    pub now_ms: i64,
    /// The window, if any.
    pub opens_at: Option<Timestamp>,
    /// The window, if any.
    pub closes_at: Option<Timestamp>,
}

impl StateNumbers {
    /// Slots that are free.
    pub fn available(&self) -> i64 {
        (self.quantity - self.taken).max(0)
    }
}

/// `meta.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateStatus {
    /// Claims are judged.
    Open,
    /// Claims answer PAUSED.
    Paused,
    /// Claims answer REBUILDING.
    Rebuilding,
}

/// What `state` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateAnswer {
    /// The state is there and belongs to this server.
    Present(StateNumbers),
    /// A key is missing, or the state belongs to another server.
    NotInitialized,
}

/// What `configure` sets; times and quantity of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Refused where the state is in another life.
    pub epoch: Epoch,
    /// Grows with every change of the campaign in Postgres. An older one is refused: a stalled writer must not undo a
    /// shrink.
    pub revision: i64,
    /// Wanted quantity; what is taken already stays.
    pub quantity: i64,
    /// The window, if any.
    pub opens_at: Option<Timestamp>,
    /// The window, if any.
    pub closes_at: Option<Timestamp>,
    /// Life of the state after the last reservation and after the close, in ms.
    pub ttl_ms: i64,
    /// Whether claims answer PAUSED.
    pub paused: bool,
}

/// What `configure` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configured {
    /// Set; the quantity is `max(wanted, taken)`.
    Set {
        /// What is in force now.
        quantity: i64,
        /// What is taken.
        taken: i64,
    },
    /// The state has a newer revision: read Postgres again.
    Stale {
        /// The state's revision.
        revision: i64,
    },
    /// The state is in another life.
    OtherEpoch(Epoch),
    /// Try again after the rebuild.
    Rebuilding,
    /// No state, or one of another server.
    NotInitialized,
}

/// What a user holds according to Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A slot.
    Holds(RequestId, Reservation),
    /// Held a slot and was canceled and restocked.
    Canceled(RequestId),
}

/// One entry that a rebuild appends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebuiltEntry {
    /// A coupon (or parked claim) that occupies a slot.
    Holder(UserId, RequestId, Reservation),
    /// A coupon that was canceled and gives its slot to somebody else.
    Canceled(UserId, RequestId),
    /// A claim in Kafka that is not decided. Counts only if the user has no entry yet.
    Pending(UserId, RequestId, Reservation, i64),
}

/// What a step of the rebuild came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildStep {
    /// Done.
    Done,
    /// Another rebuild, a flush or another server came between: stop.
    Superseded,
}

/// What `rebuild_commit` opens with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuiltState {
    /// Whose state it is.
    pub campaign: CampaignId,
    /// Epoch, revision, quantity, window, ttl and pause.
    pub configuration: Configuration,
    /// Distinct users appended; commit refuses fewer.
    pub users: u64,
}

impl StateStore {
    /// Speaks through `redis` under the installation's names.
    pub fn new(redis: Redis, naming: Naming) -> Self {
        let _ = (redis, naming);
        Self {}
    }

    /// Reserves slots for at most 256 claims of one campaign, in order. Never runs twice: an error that
    /// [`RedisError::Unanswered`] means unknown, and the batch must not be published.
    pub async fn reserve(
        &self,
        campaign: &CampaignName,
        batch: &BatchId,
        claims: &[(UserId, RequestId)],
    ) -> Result<ReserveAnswer, RedisError> {
        let _ = (campaign, batch, claims);
        unimplemented!()
    }

    /// Frees the slots that these very reservations hold. Always before `settle`.
    pub async fn release(
        &self,
        campaign: &CampaignName,
        claims: &[(UserId, Reservation)],
    ) -> Result<Transition, RedisError> {
        let _ = (campaign, claims);
        unimplemented!()
    }

    /// Takes decided batches out of pending, once.
    pub async fn settle(&self, campaign: &CampaignName, batches: &[BatchId]) -> Result<Transition, RedisError> {
        let _ = (campaign, batches);
        unimplemented!()
    }

    /// Frees the slot of a canceled coupon, once. `epoch` was read from Postgres after the cancel.
    pub async fn restock(
        &self,
        campaign: &CampaignName,
        user: &UserId,
        request: RequestId,
        epoch: Epoch,
    ) -> Result<Transition, RedisError> {
        let _ = (campaign, user, request, epoch);
        unimplemented!()
    }

    /// Sets quantity, window, ttl and pause.
    pub async fn configure(
        &self,
        campaign: &CampaignName,
        configuration: &Configuration,
    ) -> Result<Configured, RedisError> {
        let _ = (campaign, configuration);
        unimplemented!()
    }

    /// The numbers, in one answer.
    pub async fn state(&self, campaign: &CampaignName) -> Result<StateAnswer, RedisError> {
        let _ = campaign;
        unimplemented!()
    }

    /// What one user holds; `None` if nothing; an error answer `Ok(Err(()))` never: a missing state is `NotInitialized`.
    pub async fn marker(&self, campaign: &CampaignName, user: &UserId) -> Result<MarkerAnswer, RedisError> {
        let _ = (campaign, user);
        unimplemented!()
    }

    /// Batches that have been pending for longer than `older_than_ms` by Redis' clock, oldest first, at most `limit`. `None`: no usable state.
    pub async fn expired_batches(
        &self,
        campaign: &CampaignName,
        older_than_ms: i64,
        limit: usize,
    ) -> Result<Option<Vec<BatchId>>, RedisError> {
        let _ = (campaign, older_than_ms, limit);
        unimplemented!()
    }

    /// The claims that hold a slot through one of these batches, found by scanning (HSCAN): slow, for the sweeper.
    pub async fn claims_of(
        &self,
        campaign: &CampaignName,
        batches: &[BatchId],
    ) -> Result<Vec<(UserId, RequestId, Reservation)>, RedisError> {
        let _ = (campaign, batches);
        unimplemented!()
    }

    /// Shuts the door for a rebuild.
    pub async fn rebuild_begin(
        &self,
        campaign: &CampaignName,
        id: CampaignId,
        epoch: Epoch,
    ) -> Result<RebuildStep, RedisError> {
        let _ = (campaign, id, epoch);
        unimplemented!()
    }

    /// Appends at most 5,000 entries to the staging keys.
    pub async fn rebuild_append(
        &self,
        campaign: &CampaignName,
        epoch: Epoch,
        entries: &[RebuiltEntry],
    ) -> Result<RebuildStep, RedisError> {
        let _ = (campaign, epoch, entries);
        unimplemented!()
    }

    /// Puts the staging keys in place and opens the door.
    pub async fn rebuild_commit(
        &self,
        campaign: &CampaignName,
        rebuilt: &RebuiltState,
    ) -> Result<RebuildStep, RedisError> {
        let _ = (campaign, rebuilt);
        unimplemented!()
    }

    /// Removes a campaign's state (deletion). Other ids' states are left alone.
    pub async fn remove(&self, campaign: &CampaignName, id: CampaignId) -> Result<(), RedisError> {
        let _ = (campaign, id);
        unimplemented!()
    }

    /// How long a failover may leave an old primary writing: `min-replicas-max-lag` where replicas exist, zero elsewhere.
    pub async fn failover_lag(&self, campaign: &CampaignName) -> Result<std::time::Duration, RedisError> {
        let _ = campaign;
        unimplemented!()
    }
}

/// What `marker` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkerAnswer {
    /// The state is usable; what the user holds, if anything.
    Present(Option<Marker>),
    /// No usable state (missing, another server, or rebuilding): unknown.
    Unknown,
}
