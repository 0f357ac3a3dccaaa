//! The state of a campaign: the transitions of `lua/` as methods.

use std::time::Duration;

use jiff::Timestamp;
use redis::{Cmd, Value};
use uuid::Uuid;

use super::{
    answer::Answer,
    connection::{Redis, RedisError},
    failover,
    script::{self, Script},
};
use crate::{
    identity::{BatchId, CampaignId, Epoch, RequestId, Reservation, UserId},
    name::CampaignName,
    naming::{Naming, StateKeys},
    record::MAX_CLAIMS,
};

/// Speaks the transitions of a campaign's state.
#[derive(Clone)]
pub struct StateStore {
    redis: Redis,
    naming: Naming,
}

/// A rebuild that makes no progress for this long leaves nothing behind: its keys expire, and the state is missing.
const REBUILD_IDLE_MS: i64 = 10 * 60 * 1000;

/// Entries of one append script: some milliseconds of the server's time.
const APPEND_CHUNK: usize = 500;

/// Users that one step of a scan looks at.
const SCAN_STEP: usize = 500;

/// Claims or batches of one release or settle script.
const SETTLE_CHUNK: usize = 500;

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
    /// Open or paused.
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

/// `meta.status` of a usable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateStatus {
    /// Claims are judged.
    Open,
    /// Claims answer PAUSED.
    Paused,
}

/// What `state` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateAnswer {
    /// The state is there and belongs to this server.
    Present(StateNumbers),
    /// A rebuild has begun. Whether it still runs, its lock tells.
    Rebuilding {
        /// Whose state it will be.
        campaign: CampaignId,
        /// The life that begins.
        epoch: Epoch,
    },
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
    /// The state has a newer revision, or the one that was to be set ahead of Postgres: read Postgres again.
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

/// What `rebuild_append` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// So many users had no entry before.
    Users(u64),
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
        Self { redis, naming }
    }

    /// Reserves slots for at most 256 claims of one campaign, in order. Never runs twice: an error that is
    /// [`RedisError::Unanswered`] means unknown, and the batch must not be published.
    pub async fn reserve(
        &self,
        campaign: &CampaignName,
        batch: &BatchId,
        claims: &[(UserId, RequestId)],
    ) -> Result<ReserveAnswer, RedisError> {
        if claims.len() > MAX_CLAIMS {
            return Err(RedisError::NotRun {
                what: script::RESERVE.name,
                reason: format!("{} claims in one call, at most {MAX_CLAIMS} fit", claims.len()),
            });
        }
        let mut answer = self
            .run(campaign, &script::RESERVE, |command| {
                command.arg(batch.as_str());
                for (user, request) in claims {
                    command
                        .arg(user.as_str())
                        .arg(&*request.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
                }
            })
            .await?;
        let refusal = match answer.integer()? {
            DONE => {
                let reserved = Reserved {
                    campaign: answer.parse()?,
                    epoch: Epoch(answer.integer()?),
                    at_ms: answer.integer()?,
                    outcomes: claims.iter().map(|_| outcome(&mut answer)).collect::<Result<_, _>>()?,
                };
                answer.end()?;
                return Ok(ReserveAnswer::Judged(reserved));
            }
            NOT_INITIALIZED => Refusal::NotInitialized,
            REBUILDING => Refusal::Rebuilding,
            NOT_OPEN_YET => {
                let opens_at = answer.timestamp()?;
                Refusal::NotOpenYet(opens_at.ok_or_else(|| answer.unknown())?)
            }
            CLOSED => Refusal::Closed,
            PAUSED => Refusal::Paused,
            _ => return Err(answer.unknown()),
        };
        Ok(ReserveAnswer::Refused(refusal))
    }

    /// Frees the slots that these very reservations hold. Always before `settle`.
    pub async fn release(
        &self,
        campaign: &CampaignName,
        claims: &[(UserId, Reservation)],
    ) -> Result<Transition, RedisError> {
        self.in_chunks(campaign, &script::RELEASE, claims, |command, (user, reservation)| {
            command.arg(user.as_str()).arg(reservation.to_string());
        })
        .await
    }

    /// Takes decided batches out of pending, once.
    pub async fn settle(&self, campaign: &CampaignName, batches: &[BatchId]) -> Result<Transition, RedisError> {
        self.in_chunks(campaign, &script::SETTLE, batches, |command, batch| {
            command.arg(batch.as_str());
        })
        .await
    }

    /// Frees the slot of a canceled coupon, once. `epoch` was read from Postgres after the cancel.
    pub async fn restock(
        &self,
        campaign: &CampaignName,
        user: &UserId,
        request: RequestId,
        epoch: Epoch,
    ) -> Result<Transition, RedisError> {
        self.run(campaign, &script::RESTOCK, |command| {
            command.arg(user.as_str()).arg(request.to_string()).arg(epoch.0);
        })
        .await?
        .transition()
    }

    /// Sets quantity, window, ttl and pause to what Postgres says.
    pub async fn configure(
        &self,
        campaign: &CampaignName,
        configuration: &Configuration,
    ) -> Result<Configured, RedisError> {
        self.set_terms(campaign, configuration, "").await
    }

    /// Sets them before Postgres. Refused as stale where the state has this very revision: another writer, who read the
    /// same row, has taken it, and Postgres will take only one of the two.
    pub async fn configure_ahead(
        &self,
        campaign: &CampaignName,
        configuration: &Configuration,
    ) -> Result<Configured, RedisError> {
        self.set_terms(campaign, configuration, "1").await
    }

    async fn set_terms(
        &self,
        campaign: &CampaignName,
        configuration: &Configuration,
        ahead: &str,
    ) -> Result<Configured, RedisError> {
        let mut answer = self
            .run(campaign, &script::CONFIGURE, |command| {
                command.arg(configuration.epoch.0);
                add_terms(command, configuration);
                command.arg(ahead);
            })
            .await?;
        Ok(match answer.integer()? {
            DONE => Configured::Set {
                quantity: answer.integer()?,
                taken: answer.integer()?,
            },
            NOT_INITIALIZED => Configured::NotInitialized,
            REBUILDING => Configured::Rebuilding,
            OLDER_REVISION => Configured::Stale {
                revision: answer.integer()?,
            },
            OTHER_EPOCH => Configured::OtherEpoch(Epoch(answer.integer()?)),
            _ => return Err(answer.unknown()),
        })
    }

    /// The numbers, in one answer.
    pub async fn state(&self, campaign: &CampaignName) -> Result<StateAnswer, RedisError> {
        let mut answer = self.run(campaign, &script::STATE, |_| ()).await?;
        Ok(match answer.integer()? {
            DONE => StateAnswer::Present(StateNumbers {
                campaign: answer.parse()?,
                epoch: Epoch(answer.integer()?),
                revision: answer.integer()?,
                status: match answer.text()? {
                    OPEN => StateStatus::Open,
                    STATUS_PAUSED => StateStatus::Paused,
                    _ => return Err(answer.unknown()),
                },
                quantity: answer.integer()?,
                taken: answer.integer()?,
                pending: answer.integer()?,
                oldest_pending_ms: answer.optional_integer()?,
                now_ms: answer.integer()?,
                opens_at: answer.timestamp()?,
                closes_at: answer.timestamp()?,
            }),
            NOT_INITIALIZED => StateAnswer::NotInitialized,
            REBUILDING => StateAnswer::Rebuilding {
                campaign: answer.parse()?,
                epoch: Epoch(answer.integer()?),
            },
            _ => return Err(answer.unknown()),
        })
    }

    /// What one user holds. A state that cannot be used is [`MarkerAnswer::Unknown`], never nothing.
    pub async fn marker(&self, campaign: &CampaignName, user: &UserId) -> Result<MarkerAnswer, RedisError> {
        let mut answer = self
            .run(campaign, &script::MARKER, |command| {
                command.arg(user.as_str());
            })
            .await?;
        match answer.integer()? {
            DONE => match answer.text()? {
                "" => Ok(MarkerAnswer::Present(None)),
                text => match read_marker(text) {
                    Some(marker) => Ok(MarkerAnswer::Present(Some(marker))),
                    None => Err(answer.unknown()),
                },
            },
            NOT_INITIALIZED | REBUILDING => Ok(MarkerAnswer::Unknown),
            _ => Err(answer.unknown()),
        }
    }

    /// Batches that have been pending for longer than `older_than_ms` by Redis' clock, oldest first, at most `limit`.
    /// `None`: no usable state.
    pub async fn expired_batches(
        &self,
        campaign: &CampaignName,
        older_than_ms: i64,
        limit: usize,
    ) -> Result<Option<Vec<BatchId>>, RedisError> {
        let mut answer = self
            .run(campaign, &script::EXPIRED, |command| {
                command.arg(older_than_ms).arg(limit);
            })
            .await?;
        match answer.integer()? {
            DONE => {
                let mut batches = Vec::new();
                while !answer.is_empty() {
                    batches.push(answer.parse()?);
                }
                Ok(Some(batches))
            }
            NOT_INITIALIZED | REBUILDING => Ok(None),
            _ => Err(answer.unknown()),
        }
    }

    /// The claims that hold a slot through one of these batches, found by scanning (HSCAN): slow, for the sweeper.
    /// `None`: no usable state, or a rebuild replaced it meanwhile.
    pub async fn claims_of(
        &self,
        campaign: &CampaignName,
        batches: &[BatchId],
    ) -> Result<Option<Vec<(UserId, RequestId, Reservation)>>, RedisError> {
        // A scan may give an element twice.
        let mut claims = std::collections::BTreeMap::new();
        let mut cursor = String::from("0");
        let mut epoch = None;
        loop {
            let mut answer = self
                .run(campaign, &script::SCAN_CLAIMS, |command| {
                    command.arg(&cursor).arg(SCAN_STEP);
                    for batch in batches {
                        command.arg(batch.as_str());
                    }
                })
                .await?;
            match answer.integer()? {
                DONE => {}
                NOT_INITIALIZED | REBUILDING => return Ok(None),
                _ => return Err(answer.unknown()),
            }
            let step = answer.integer()?;
            if *epoch.get_or_insert(step) != step {
                return Ok(None);
            }
            cursor = answer.text()?.to_owned();
            while !answer.is_empty() {
                let user: UserId = answer.parse()?;
                match read_marker(answer.text()?) {
                    Some(Marker::Holds(request, reservation)) => claims.insert(user, (request, reservation)),
                    _ => return Err(answer.unknown()),
                };
            }
            if cursor == "0" {
                let flat = |(user, (request, reservation))| (user, request, reservation);
                return Ok(Some(claims.into_iter().map(flat).collect()));
            }
        }
    }

    /// Shuts the door for a rebuild.
    pub async fn rebuild_begin(
        &self,
        campaign: &CampaignName,
        id: CampaignId,
        epoch: Epoch,
    ) -> Result<RebuildStep, RedisError> {
        let keys = self.naming.state(campaign);
        let staging = keys.staging(epoch);
        self.run_on(&script::REBUILD_BEGIN, &with_meta(&keys, &staging), |command| {
            command.arg(id.to_string()).arg(epoch.0).arg(REBUILD_IDLE_MS);
        })
        .await?
        .rebuild_step()
    }

    /// Appends at most 5,000 entries to the staging keys. A user counts once; what was appended may be appended again.
    pub async fn rebuild_append(
        &self,
        campaign: &CampaignName,
        epoch: Epoch,
        entries: &[RebuiltEntry],
    ) -> Result<Appended, RedisError> {
        let keys = self.naming.state(campaign);
        let staging = keys.staging(epoch);
        let mut users = 0;
        for chunk in entries.chunks(APPEND_CHUNK) {
            let appended = self
                .run_on(&script::REBUILD_APPEND, &with_meta(&keys, &staging), |command| {
                    command.arg(epoch.0).arg(REBUILD_IDLE_MS);
                    chunk.iter().for_each(|entry| add_entry(command, entry));
                })
                .await?
                .appended()?;
            match appended {
                Appended::Users(new) => users += new,
                Appended::Superseded => return Ok(appended),
            }
        }
        Ok(Appended::Users(users))
    }

    /// Puts the staging keys in place and opens the door.
    pub async fn rebuild_commit(
        &self,
        campaign: &CampaignName,
        rebuilt: &RebuiltState,
    ) -> Result<RebuildStep, RedisError> {
        let keys = self.naming.state(campaign);
        let staging = keys.staging(rebuilt.configuration.epoch);
        let keys: Vec<&str> = all(&keys).into_iter().chain(all(&staging)).collect();
        self.run_on(&script::REBUILD_COMMIT, &keys, |command| {
            command
                .arg(rebuilt.configuration.epoch.0)
                .arg(rebuilt.campaign.to_string());
            add_terms(command, &rebuilt.configuration);
            command.arg(rebuilt.users);
        })
        .await?
        .rebuild_step()
    }

    /// Removes a campaign's state (deletion). Other ids' states are left alone.
    pub async fn remove(&self, campaign: &CampaignName, id: CampaignId) -> Result<(), RedisError> {
        let mut answer = self
            .run(campaign, &script::REMOVE, |command| {
                command.arg(id.to_string());
            })
            .await?;
        match answer.integer()? {
            DONE => Ok(()),
            _ => Err(answer.unknown()),
        }
    }

    /// How long a failover may leave an old primary writing: `min-replicas-max-lag` (in a Cluster at least
    /// `cluster-node-timeout`) where replicas exist, zero elsewhere.
    pub async fn failover_lag(&self, campaign: &CampaignName) -> Result<Duration, RedisError> {
        failover::lag(&self.redis, &self.naming.state(campaign).meta).await
    }

    async fn run(
        &self,
        campaign: &CampaignName,
        script: &'static Script,
        fill: impl Fn(&mut Cmd),
    ) -> Result<Answer, RedisError> {
        self.run_on(script, &all(&self.naming.state(campaign)), fill).await
    }

    async fn run_on(
        &self,
        script: &'static Script,
        keys: &[&str],
        fill: impl Fn(&mut Cmd),
    ) -> Result<Answer, RedisError> {
        Answer::new(script.name, self.redis.run(script, keys, fill).await?)
    }

    /// Release and settle may be repeated, so a long list goes in pieces: none holds the server up.
    async fn in_chunks<T>(
        &self,
        campaign: &CampaignName,
        script: &'static Script,
        items: &[T],
        fill: impl Fn(&mut Cmd, &T),
    ) -> Result<Transition, RedisError> {
        let mut changed = 0;
        for chunk in items.chunks(SETTLE_CHUNK) {
            let answer = self
                .run(campaign, script, |command| {
                    chunk.iter().for_each(|item| fill(command, item))
                })
                .await?;
            match answer.transition()? {
                Transition::Done(count) => changed += count,
                other => return Ok(other),
            }
        }
        Ok(Transition::Done(changed))
    }
}

// The codes of `lua/`.
const DONE: i64 = 0;
const NOT_INITIALIZED: i64 = 3;
const REBUILDING: i64 = 4;
const NOT_OPEN_YET: i64 = 5;
const CLOSED: i64 = 6;
const PAUSED: i64 = 7;
const OLDER_REVISION: i64 = 10;
const OTHER_EPOCH: i64 = 11;
const SUPERSEDED: i64 = 12;

// `meta.status`.
const OPEN: &str = "open";
const STATUS_PAUSED: &str = "paused";

const CANCELED: &str = "canceled";

impl Answer {
    fn transition(mut self) -> Result<Transition, RedisError> {
        match self.integer()? {
            DONE => Ok(Transition::Done(self.integer()?.unsigned_abs())),
            NOT_INITIALIZED => Ok(Transition::NotInitialized),
            REBUILDING => Ok(Transition::Rebuilding),
            _ => Err(self.unknown()),
        }
    }

    fn appended(mut self) -> Result<Appended, RedisError> {
        match self.integer()? {
            DONE => Ok(Appended::Users(self.integer()?.unsigned_abs())),
            SUPERSEDED => Ok(Appended::Superseded),
            _ => Err(self.unknown()),
        }
    }

    fn rebuild_step(mut self) -> Result<RebuildStep, RedisError> {
        match self.integer()? {
            DONE => Ok(RebuildStep::Done),
            SUPERSEDED => Ok(RebuildStep::Superseded),
            _ => Err(self.unknown()),
        }
    }
}

fn outcome(answer: &mut Answer) -> Result<ReserveOutcome, RedisError> {
    match answer.next()? {
        Value::Int(0) => Ok(ReserveOutcome::Success),
        Value::Int(2) => Ok(ReserveOutcome::SoldOut),
        Value::Int(8) => Ok(ReserveOutcome::Settled),
        Value::Int(9) => Ok(ReserveOutcome::InFlight),
        Value::BulkString(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.strip_prefix("1 ")?.parse().ok())
            .map(ReserveOutcome::Duplicate)
            .ok_or_else(|| answer.unknown()),
        _ => Err(answer.unknown()),
    }
}

fn read_marker(text: &str) -> Option<Marker> {
    let (request, held) = text.split_once(' ')?;
    let request = request.parse().ok()?;
    match held {
        CANCELED => Some(Marker::Canceled(request)),
        reservation => Some(Marker::Holds(request, reservation.parse().ok()?)),
    }
}

fn all(keys: &StateKeys) -> [&str; 5] {
    [
        &keys.meta,
        &keys.occupied,
        &keys.users,
        &keys.pending,
        &keys.pending_claims,
    ]
}

fn with_meta<'a>(keys: &'a StateKeys, staging: &'a StateKeys) -> Vec<&'a str> {
    std::iter::once(keys.meta.as_str()).chain(all(staging)).collect()
}

/// Revision, quantity, window, ttl and pause, in the order of `configure.lua` and `rebuild_commit.lua`.
fn add_terms(command: &mut Cmd, terms: &Configuration) {
    let milliseconds = |time: Option<Timestamp>| time.map_or(String::new(), |time| time.as_millisecond().to_string());
    command
        .arg(terms.revision)
        .arg(terms.quantity)
        .arg(milliseconds(terms.opens_at))
        .arg(milliseconds(terms.closes_at))
        .arg(terms.ttl_ms)
        .arg(if terms.paused { STATUS_PAUSED } else { OPEN });
}

fn add_entry(command: &mut Cmd, entry: &RebuiltEntry) {
    match entry {
        RebuiltEntry::Holder(user, request, reservation) => command
            .arg(user.as_str())
            .arg(format!("{request} {reservation}"))
            .arg("")
            .arg(""),
        RebuiltEntry::Canceled(user, request) => command
            .arg(user.as_str())
            .arg(format!("{request} {CANCELED}"))
            .arg("")
            .arg(""),
        RebuiltEntry::Pending(user, request, reservation, at_ms) => command
            .arg(user.as_str())
            .arg(format!("{request} {reservation}"))
            .arg(reservation.batch.as_str())
            .arg(*at_ms),
    };
}

/// What `marker` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkerAnswer {
    /// The state is usable; what the user holds, if anything.
    Present(Option<Marker>),
    /// No usable state (missing, another server, or rebuilding): unknown.
    Unknown,
}
