//! Rebuilds a campaign's state in Redis from Postgres and from the claims that are still in Kafka.
//!
//! The order of the steps is the promise: the door is shut before the wait, the wait is over before the end offsets are
//! read, and the rows are read after them, in the transaction that stores them as this epoch's cut. So a claim that was
//! answered SUCCESS is either a row or a record before the cut, and a record after the cut was never answered SUCCESS.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::pending,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use crate::{
    identity::{BatchId, CampaignId, Epoch},
    kafka::{
        client::KafkaError,
        offsets::{PastEnd, TopicReader},
    },
    mutant::{self, Mutant},
    name::CampaignName,
    naming::Naming,
    postgres::{
        campaign::CampaignRow,
        database::{Database, DatabaseError},
        snapshot::{Snapshot, SnapshotStart},
    },
    record::{ClaimRecord, is_stale},
    redis::{
        connection::{Redis, RedisError},
        lock::Locks,
        state::{Appended, Configuration, RebuildStep, RebuiltEntry, RebuiltState, StateAnswer, StateStore},
    },
    settings::KafkaSettings,
};

/// How long a finder of a missing state waits for the lock; whoever holds it is rebuilding.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// A rebuilder that died is taken over after this.
const LOCK_LEASE: Duration = Duration::from_secs(10);
/// How long one partition may take to tell its offsets.
const OFFSETS_LIMIT: Duration = Duration::from_secs(10);
/// Entries of one append: short enough not to hold up other commands.
const CHUNK: usize = 5_000;
/// Records between the reader's thread and the rebuild.
const READ_AHEAD: usize = 64;

/// Rebuilds states.
#[derive(Clone)]
pub struct Rebuilder {
    /// The state to write.
    pub state: StateStore,
    /// For `COUPON_ISSUE_STATE_INIT`.
    pub locks: Locks,
    /// The truth.
    pub database: Database,
    /// Claims not yet persisted.
    pub reader: TopicReader,
    /// Names of the installation.
    pub naming: Naming,
    /// `publishTimeout` plus the clock margin.
    pub settle_after: Duration,
}

/// What a rebuild came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// The state is new.
    Done {
        /// Its life.
        epoch: Epoch,
        /// Users in it.
        users: u64,
        /// How long the door was shut.
        took: Duration,
    },
    /// The state is there, or somebody else is rebuilding it.
    NotNeeded,
    /// A later rebuild, a flush or another server overtook this one.
    Superseded,
    /// There is no live campaign of that name.
    NoCampaign,
}

/// Why a rebuild stopped; the state stays shut or missing, and the next one starts anew.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// Redis.
    #[error("rebuild: {0}")]
    Redis(#[from] RedisError),
    /// Postgres.
    #[error("rebuild: {0}")]
    Database(#[from] DatabaseError),
    /// Kafka.
    #[error("rebuild: {0}")]
    Kafka(#[from] KafkaError),
    /// The lock was lost on the way: another rebuilder may be at work.
    #[error("rebuild of {0}: the lock was lost; the next round starts anew")]
    LockLost(CampaignName),
    /// What Postgres has consumed and what Kafka holds do not fit together.
    #[error(
        "rebuild of {campaign}: partition {partition} of {topic} is consumed up to {consumed} but ends at {end}; \
         was the topic recreated? restore it, or accept it as it is with `coupon topics accept`"
    )]
    AheadOfKafka {
        /// Whose state.
        campaign: CampaignName,
        /// The topic.
        topic: String,
        /// Where.
        partition: i32,
        /// What Postgres says.
        consumed: i64,
        /// What Kafka says.
        end: i64,
    },
}

/// Whether a state that is there is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only a missing one (or one of another server or epoch, or one left `rebuilding`).
    IfMissing,
    /// In any case.
    Always,
}

/// Whether this state serves this campaign: one of another campaign or epoch, or one left `rebuilding` by somebody who
/// holds no lock any more, is as good as missing.
pub fn serves(answer: &StateAnswer, campaign: CampaignId, epoch: Epoch) -> bool {
    matches!(answer, StateAnswer::Present(state) if state.campaign == campaign && state.epoch == epoch)
}

/// What a step says when it cannot go on without being an error.
enum Stop {
    Superseded,
    Failed(RebuildError),
}

impl<E: Into<RebuildError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Rebuilder {
    /// With the connections of a process. `settle_after`: `publishTimeout` plus the clock margin.
    pub fn new(
        redis: Redis,
        database: Database,
        kafka: &KafkaSettings,
        naming: Naming,
        settle_after: Duration,
    ) -> Result<Self, KafkaError> {
        Ok(Self {
            state: StateStore::new(redis.clone(), naming.clone()),
            locks: Locks::new(redis),
            database,
            reader: TopicReader::new(kafka, OFFSETS_LIMIT)?,
            naming,
            settle_after,
        })
    }

    /// Rebuilds one campaign's state. Any process may call this at any time; one of them does it.
    pub async fn rebuild(&self, campaign: &CampaignName, force: Force) -> Result<Rebuilt, RebuildError> {
        match self.rebuild_unless(pending::<Infallible>(), campaign, force).await? {
            ControlFlow::Continue(rebuilt) => Ok(rebuilt),
            ControlFlow::Break(never) => match never {},
        }
    }

    /// The same, given up once `stop` resolves: whoever finds the state missing next begins anew at once, and need not wait
    /// until the lock of one that is gone has run out. The tries for the lock (a second) are not given up.
    pub async fn rebuild_unless<S>(
        &self,
        stop: impl Future<Output = S>,
        campaign: &CampaignName,
        force: Force,
    ) -> Result<ControlFlow<S, Rebuilt>, RebuildError> {
        let lock_key = self.naming.rebuild_lock(campaign);
        let Some(lock) = self.locks.acquire(&lock_key, LOCK_LEASE, 0, LOCK_WAIT).await? else {
            return Ok(ControlFlow::Continue(Rebuilt::NotNeeded));
        };
        let outcome = tokio::select! {
            outcome = self.under_lock(campaign, force) => outcome.map(ControlFlow::Continue),
            stopped = stop => Ok(ControlFlow::Break(stopped)),
            () = lock.lost() => return Err(RebuildError::LockLost(campaign.clone())),
        };
        if let Err(error) = lock.release().await {
            tracing::debug!(%error, %campaign, "rebuild lock runs out by itself");
        }
        outcome
    }

    async fn under_lock(&self, campaign: &CampaignName, force: Force) -> Result<Rebuilt, RebuildError> {
        let Some(row) = self.database.campaign(campaign).await? else {
            return Ok(Rebuilt::NoCampaign);
        };
        // The second look: somebody may have rebuilt it while we waited for the lock.
        let found = self.state.state(campaign).await?;
        if force == Force::IfMissing && serves(&found, row.id, row.epoch) {
            return Ok(Rebuilt::NotNeeded);
        }
        match self.steps(&row, &found).await {
            Ok(done) => Ok(done),
            Err(Stop::Superseded) => Ok(Rebuilt::Superseded),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    async fn steps(&self, row: &CampaignRow, found: &StateAnswer) -> Result<Rebuilt, Stop> {
        let campaign = &row.name;
        let Some(raised) = self.database.raise_epoch(row.id).await? else {
            return Ok(Rebuilt::NoCampaign);
        };
        let epoch = raised.epoch;
        go_on(self.state.rebuild_begin(campaign, row.id, epoch).await?)?;
        let shut = Instant::now();
        // A first epoch has nothing on its way, unless Postgres was put back to before it: then there is a state.
        let first = raised.first && *found == StateAnswer::NotInitialized;
        tracing::info!(%campaign, %epoch, first, "state rebuild began");

        if !first {
            // An old primary may serve until it notices that its replicas are gone; only then does the wait for claims
            // on their way begin.
            tokio::time::sleep(self.state.failover_lag(campaign).await?).await;
            if !mutant::is(Mutant::RebuildWithoutWait) {
                tokio::time::sleep(self.settle_after).await;
            }
        }

        let topic = self.naming.requests_topic();
        let watermarks = self.reader.watermarks(&topic).await?;
        let cut: HashMap<i32, i64> = watermarks
            .iter()
            .map(|(&partition, marks)| (partition, marks.high))
            .collect();
        let mut snapshot = match self.database.begin_snapshot(&topic, row.id, epoch, &cut).await? {
            SnapshotStart::Open(snapshot) => snapshot,
            SnapshotStart::Superseded => return Err(Stop::Superseded),
        };
        // Offsets that Kafka does not have any more cannot be compared with cuts: better shut than wrong.
        let consumed = snapshot.consumed().clone();
        let past_end = self.reader.past_end(&topic, &consumed, &watermarks);
        if let Some(found) = snapshot.kept_while(past_end).await?? {
            return Err(Stop::Failed(ahead_of_kafka(campaign, topic, found)));
        }

        let mut users = self.append_rows(campaign, epoch, &mut snapshot).await?;
        #[cfg(feature = "mutants")]
        if mutant::is(Mutant::RebuildWithTwoSnapshots) {
            snapshot.begin_another_moment(&topic).await?;
        }
        if !mutant::is(Mutant::RebuildWithoutKafka) {
            users += self.append_claims(row, epoch, &topic, cut, &mut snapshot).await?;
        }
        let configuration = configuration_of(snapshot.campaign(), epoch);
        snapshot.commit().await?;

        let rebuilt = RebuiltState {
            campaign: row.id,
            configuration,
            users,
        };
        go_on(self.state.rebuild_commit(campaign, &rebuilt).await?)?;
        let took = shut.elapsed();
        tracing::info!(%campaign, %epoch, users, ?took, "state rebuilt");
        Ok(Rebuilt::Done { epoch, users, took })
    }

    async fn append_rows(&self, campaign: &CampaignName, epoch: Epoch, snapshot: &mut Snapshot) -> Result<u64, Stop> {
        let mut users = 0;
        // At least one append: it makes the staging keys of a campaign without holders.
        loop {
            let entries = snapshot.next_entries(CHUNK).await?;
            users += self.append(campaign, epoch, &entries).await?;
            if entries.is_empty() {
                return Ok(users);
            }
        }
    }

    /// Appends the claims that are stored before the cut and not decided. They follow the rows, so a row wins.
    async fn append_claims(
        &self,
        row: &CampaignRow,
        epoch: Epoch,
        topic: &str,
        cut: HashMap<i32, i64>,
        snapshot: &mut Snapshot,
    ) -> Result<u64, Stop> {
        let id = row.id;
        let (found, mut records) = mpsc::channel::<(i32, i64, ClaimRecord)>(READ_AHEAD);
        let from = snapshot.consumed().clone();
        let each = move |partition, offset, value: &[u8]| match ClaimRecord::decode(value) {
            Ok(record) if record.id == id => match found.blocking_send((partition, offset, record)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            },
            // Nobody waits for them any more.
            _ if found.is_closed() => ControlFlow::Break(()),
            // Other campaigns' records, and bytes that the worker will put to the dead letters.
            _ => ControlFlow::Continue(()),
        };
        let mut users = 0;
        let appending = async {
            let mut waiting: Vec<ClaimRecord> = Vec::new();
            let mut claims = 0;
            // Between two records of ours there may be gigabytes of other campaigns'.
            while let Some((partition, offset, record)) = snapshot.kept_while(records.recv()).await? {
                if is_stale(record.epoch, partition, offset, snapshot.cuts()) {
                    continue;
                }
                claims += record.claims.len();
                waiting.push(record);
                if claims + crate::record::MAX_CLAIMS > CHUNK {
                    users += self.append_undecided(&row.name, epoch, snapshot, &mut waiting).await?;
                    claims = 0;
                }
            }
            users += self.append_undecided(&row.name, epoch, snapshot, &mut waiting).await?;
            Ok::<(), Stop>(())
        };
        let reading = async { self.reader.read(topic, from, cut, each).await.map_err(Stop::from) };
        tokio::try_join!(reading, appending)?;
        Ok(users)
    }

    async fn append_undecided(
        &self,
        campaign: &CampaignName,
        epoch: Epoch,
        snapshot: &mut Snapshot,
        records: &mut Vec<ClaimRecord>,
    ) -> Result<u64, Stop> {
        let batches: Vec<BatchId> = records.iter().map(|record| record.batch.clone()).collect();
        let decided = snapshot.decided(&batches).await?;
        let entries: Vec<RebuiltEntry> = records
            .drain(..)
            .filter(|record| !decided.contains(&record.batch))
            .flat_map(pending_entries)
            .collect();
        if entries.is_empty() {
            return Ok(0);
        }
        self.append(campaign, epoch, &entries).await
    }

    async fn append(&self, campaign: &CampaignName, epoch: Epoch, entries: &[RebuiltEntry]) -> Result<u64, Stop> {
        match self.state.rebuild_append(campaign, epoch, entries).await? {
            Appended::Users(users) => Ok(users),
            Appended::Superseded => Err(Stop::Superseded),
        }
    }
}

fn go_on(step: RebuildStep) -> Result<(), Stop> {
    match step {
        RebuildStep::Done => Ok(()),
        RebuildStep::Superseded => Err(Stop::Superseded),
    }
}

fn ahead_of_kafka(campaign: &CampaignName, topic: String, found: PastEnd) -> RebuildError {
    RebuildError::AheadOfKafka {
        campaign: campaign.clone(),
        topic,
        partition: found.partition,
        consumed: found.consumed,
        end: found.end,
    }
}

fn pending_entries(record: ClaimRecord) -> impl Iterator<Item = RebuiltEntry> {
    let (batch, reserved_at) = (record.batch, record.reserved_at);
    record.claims.into_iter().map(move |claim| {
        RebuiltEntry::Pending(claim.user_id, claim.request_id, batch.reservation(claim.i), reserved_at)
    })
}

/// What the state of `row` is configured to.
pub fn configuration_of(row: &CampaignRow, epoch: Epoch) -> Configuration {
    Configuration {
        epoch,
        revision: row.revision,
        quantity: row.terms.quantity,
        opens_at: row.terms.opens_at,
        closes_at: row.terms.closes_at,
        ttl_ms: row.terms.ttl_ms,
        paused: row.terms.paused,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::redis::state::{StateNumbers, StateStatus};

    fn state(campaign: CampaignId, epoch: i64, status: StateStatus) -> StateAnswer {
        StateAnswer::Present(StateNumbers {
            campaign,
            epoch: Epoch(epoch),
            revision: 1,
            status,
            quantity: 1,
            taken: 0,
            pending: 0,
            oldest_pending_ms: None,
            now_ms: 0,
            opens_at: None,
            closes_at: None,
        })
    }

    #[test]
    fn a_state_serves_only_its_own_campaign_and_epoch_and_only_when_finished() {
        let (ours, other) = (CampaignId(Uuid::from_u128(1)), CampaignId(Uuid::from_u128(2)));
        for (answer, expected) in [
            (StateAnswer::NotInitialized, false),
            (state(ours, 7, StateStatus::Open), true),
            (state(ours, 7, StateStatus::Paused), true),
            (
                StateAnswer::Rebuilding {
                    campaign: ours,
                    epoch: Epoch(7),
                },
                false,
            ),
            (state(ours, 6, StateStatus::Open), false),
            (state(other, 7, StateStatus::Open), false),
        ] {
            assert_eq!(serves(&answer, ours, Epoch(7)), expected, "{answer:?}");
        }
    }
}
