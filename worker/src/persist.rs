//! The loop of one campaign: ready records → limit → lock → one transaction → release and settle.
//!
//! Whatever fails here is tried again without a limit, and nothing is skipped: other campaigns have tasks of their own
//! and pass. The order within a step:
//!
//! 1. permits, before the lock: who waits for them holds nobody up;
//! 2. the lock, with the campaign's fence as floor; kept over consecutive batches for a while;
//! 3. the transaction, with the offsets that it completes (see `partition`);
//! 4. finish the records in their windows;
//! 5. release what was rejected, then settle, beside the next transaction; if Redis is out, the sweeper does it.
//!
//! Kafka is never waited for under the lock: dead letters are published without it.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use campaign::{
    identity::{BatchId, CampaignId, Reservation, UserId},
    kafka::producer::Producer,
    mutant::{self, Mutant},
    name::CampaignName,
    naming::Naming,
    postgres::{
        database::{Database, DatabaseError},
        persist::{DecidedBatch, LocatedRecord, PersistError, PersistRequest, Persisted},
    },
    redis::{
        connection::RedisError,
        limit::ProcessingLimit,
        lock::{Held, Locks},
        state::{StateStore, Transition},
    },
};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    assignment::{Assignment, Place},
    backoff::{Backoff, pause},
    campaign_queue::CampaignQueue,
    dead_letter::{self, DeadLetter, DeadLetterBudget},
    metrics::Metrics,
    settings::Tuning,
};

/// Tries of a record alone before its refused claims are dead letters.
const TRIES: u32 = 5;
/// One wait for the lock; between two, the worker looks whether it has to stop.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// Longest look away of a campaign that waits after too many dead letters: a fixed database is found within this.
const WAITING: Duration = Duration::from_secs(5);
/// Tries of release and settle before they are left to the sweeper.
const SETTLE_TRIES: usize = 3;

/// What the tasks of all campaigns share.
pub struct Persistence {
    /// The truth.
    pub database: Database,
    /// The state.
    pub state: StateStore,
    /// Locks.
    pub locks: Locks,
    /// The installation's permits.
    pub limit: ProcessingLimit,
    /// For dead letters.
    pub producer: Producer,
    /// Names.
    pub naming: Naming,
    /// The partitions.
    pub assignment: Arc<Assignment>,
    /// Transactions at once: fewer than the pool has connections, first come, first served, so that many campaigns
    /// share fairly.
    pub transactions: Semaphore,
    /// There are new events.
    pub events: Arc<Notify>,
    /// Counters.
    pub metrics: Metrics,
    /// Bounds.
    pub tuning: Tuning,
}

/// Whose records one task persists. The name is part of it: the lock and the state go by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CampaignKey {
    /// The id.
    pub id: CampaignId,
    /// The name.
    pub name: CampaignName,
}

/// The task of one campaign.
pub struct CampaignTask {
    shared: Arc<Persistence>,
    campaign: CampaignKey,
    queue: CampaignQueue,
    stop: CancellationToken,
    lock: Option<KeptLock>,
    settling: Option<JoinHandle<()>>,
    floor: i64,
    permits: usize,
    max_records: usize,
    refused: Option<RefusedRecord>,
    dead: HashMap<Reservation, String>,
    budget: DeadLetterBudget,
    backoff: Backoff,
}

struct KeptLock {
    held: Held,
    since: Instant,
}

/// A record that the database refuses, alone in its transaction.
struct RefusedRecord {
    batch: BatchId,
    tries: u32,
    first_failure: jiff::Timestamp,
}

/// What a step came to.
enum Step {
    /// Go on.
    Done,
    /// Try again after a pause.
    Retry,
    /// Try again after this pause.
    Wait(Duration),
}

/// What stands in the way; all of it is retried.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    DeadLetter(#[from] dead_letter::DeadLetterError),
}

impl StepError {
    fn kind(&self) -> &'static str {
        match self {
            Self::Redis(_) => "redis",
            Self::Database(_) => "postgres",
            Self::DeadLetter(_) => "dead_letter",
        }
    }
}

impl CampaignTask {
    /// A task that persists what comes through `queue` until it is idle or `stop` is cancelled.
    pub fn new(shared: Arc<Persistence>, campaign: CampaignKey, queue: CampaignQueue, stop: CancellationToken) -> Self {
        let max_records = shared.tuning.batch_claims;
        Self {
            shared,
            campaign,
            queue,
            stop,
            lock: None,
            settling: None,
            floor: 0,
            permits: 0,
            max_records,
            refused: None,
            dead: HashMap::new(),
            budget: DeadLetterBudget::default(),
            backoff: Backoff::default(),
        }
    }

    /// Runs. What it has not persisted when it is stopped is not finished in its window, so somebody reads it again.
    pub async fn run(mut self) {
        let idle = self.shared.tuning.campaign_idle;
        while self.queue.wait(idle, &self.stop).await {
            let step = match self.step().await {
                Ok(step) => step,
                Err(error) => {
                    self.shared.metrics.retry(error.kind());
                    tracing::warn!(%error, campaign = %self.campaign.name, "claims wait, trying again");
                    Step::Retry
                }
            };
            let pause = match step {
                Step::Done => {
                    self.backoff.reset();
                    if !self.queue.has_ready() {
                        self.unlock().await;
                    }
                    continue;
                }
                Step::Retry => self.backoff.next_pause(),
                Step::Wait(pause) => pause,
            };
            self.unlock().await;
            crate::backoff::pause(pause, &self.stop).await;
        }
        self.unlock().await;
        self.settled().await;
    }

    async fn step(&mut self) -> Result<Step, StepError> {
        let assignment = self.shared.assignment.clone();
        self.queue.retain(|ready| assignment.is_current(ready.place));
        if !self.queue.has_ready() {
            return Ok(Step::Done);
        }
        let covered = match self.permits().await? {
            0 => return Ok(Step::Done),
            covered => covered,
        };
        let Some(token) = self.token().await? else {
            self.shared.metrics.retry("lock");
            return Ok(Step::Wait(Duration::ZERO));
        };
        let (places, records): (Vec<Place>, Vec<LocatedRecord>) = self
            .queue
            .front(covered, usize::MAX)
            .iter()
            .map(|ready| (ready.place, ready.located.clone()))
            .unzip();
        self.persist(&places, &records, token).await
    }

    /// How many of the first records may be persisted now. Zero after a wait: look again what is ready.
    async fn permits(&mut self) -> Result<usize, StepError> {
        let began = Instant::now();
        let batch_claims = self.shared.tuning.batch_claims;
        loop {
            let front = self.queue.front(self.max_records, batch_claims);
            let records = front.len();
            let claims = front.iter().map(|ready| ready.located.record.claims.len()).sum();
            if self.permits < claims {
                let missing = u32::try_from(claims - self.permits).unwrap_or(u32::MAX);
                let granted = self.shared.limit.acquire(missing).await?;
                // What was given is spent in the installation, so it is kept here until a transaction uses it.
                self.permits += granted.permits as usize;
                let covered = self.queue.covered(records, self.permits);
                if covered == 0 {
                    self.unlock().await;
                    if !pause(granted.retry_after.max(Duration::from_millis(1)), &self.stop).await {
                        return Ok(0);
                    }
                    continue;
                }
                self.shared
                    .metrics
                    .limit_wait_seconds
                    .observe(began.elapsed().as_secs_f64());
                return Ok(covered);
            }
            return Ok(records);
        }
    }

    /// The token of the campaign's lock; `None` if somebody else has it.
    async fn token(&mut self) -> Result<Option<i64>, StepError> {
        let tuning = &self.shared.tuning;
        if let Some(lock) = &self.lock
            && lock.held.is_held()
            && lock.since.elapsed() < tuning.lock_keep
        {
            return Ok(Some(lock.held.token()));
        }
        self.unlock().await;
        let began = Instant::now();
        let row = self.shared.database.campaign(&self.campaign.name).await?;
        let fence = row
            .filter(|row| row.id == self.campaign.id)
            .map_or(self.floor, |row| row.fence.max(self.floor));
        let key = self.shared.naming.issue_lock(&self.campaign.name);
        let held = tokio::select! {
            held = self.shared.locks.acquire(&key, self.shared.tuning.lock_lease, fence, LOCK_WAIT) => held?,
            () = self.stop.cancelled() => None,
        };
        let Some(held) = held else { return Ok(None) };
        self.shared
            .metrics
            .lock_wait_seconds
            .observe(began.elapsed().as_secs_f64());
        let token = held.token();
        self.lock = Some(KeptLock {
            held,
            since: Instant::now(),
        });
        Ok(Some(token))
    }

    async fn unlock(&mut self) {
        if let Some(lock) = self.lock.take()
            && let Err(error) = lock.held.release().await
        {
            tracing::debug!(%error, campaign = %self.campaign.name, "the lock could not be given back, its lease runs out");
        }
    }

    async fn persist(&mut self, places: &[Place], records: &[LocatedRecord], token: i64) -> Result<Step, StepError> {
        let shared = self.shared.clone();
        let Ok(turn) = shared.transactions.acquire().await else {
            return Ok(Step::Retry);
        };
        let carried = shared.assignment.begin(places);
        let began = Instant::now();
        let outcome = shared
            .database
            .persist(&PersistRequest {
                topic: shared.assignment.topic(),
                campaign: self.campaign.id,
                token,
                records,
                dead: &self.dead,
                advances: carried.advances(),
                rests_on: carried.rests_on(),
            })
            .await;
        drop(turn);
        match outcome {
            Ok(persisted) => {
                let claims = claims_of(records);
                shared.metrics.persist_seconds.observe(began.elapsed().as_secs_f64());
                shared.metrics.batch_claims.observe(claims as f64);
                let decided = records.iter().map(|located| DecidedBatch {
                    campaign: self.campaign.id,
                    batch: located.record.batch.clone(),
                });
                shared.assignment.committed(places, decided, carried);
                self.queue.drop_front(records.len());
                self.permits = self.permits.saturating_sub(claims);
                self.committed(records, persisted, claims).await;
                Ok(Step::Done)
            }
            Err(PersistError::Fenced { fence, .. }) => {
                shared.assignment.failed(carried, false);
                shared.metrics.retry("fenced");
                self.floor = self.floor.max(fence);
                self.unlock().await;
                Ok(Step::Done)
            }
            Err(PersistError::Moved { .. }) => {
                // Nothing was written. The windows begin again where Postgres says, and `step` drops what was read
                // before.
                shared.assignment.failed(carried, false);
                shared.metrics.retry("moved");
                shared.assignment.reconcile().await?;
                Ok(Step::Done)
            }
            Err(PersistError::PutBack { .. }) => {
                // As above, except that the stored offset is what we thought.
                shared.metrics.retry("put_back");
                shared.assignment.put_back(carried);
                Ok(Step::Done)
            }
            Err(PersistError::TooManyDeadLetters { count, .. }) => {
                shared.assignment.failed(carried, false);
                Ok(self.too_many_dead_letters(count, WAITING).await)
            }
            Err(PersistError::Database(error @ DatabaseError::DataRefused { .. })) => {
                shared.assignment.failed(carried, false);
                self.unlock().await;
                self.refused(records, &error).await
            }
            Err(PersistError::Database(error)) => {
                // The commit's answer may be lost: what it wrote is then "already decided", and the offset that it
                // moved is found by reading it.
                shared.assignment.failed(carried, true);
                self.unlock().await;
                shared.assignment.reconcile().await?;
                Err(error.into())
            }
        }
    }

    /// After the commit: nothing of this can fail the step any more.
    async fn committed(&mut self, records: &[LocatedRecord], persisted: Persisted, claims: usize) {
        let shared = self.shared.clone();
        let metrics = &shared.metrics;
        self.max_records = self.max_records.saturating_mul(2).min(shared.tuning.batch_claims);
        self.refused = None;
        if !self.dead.is_empty() {
            for located in records {
                for claim in &located.record.claims {
                    self.dead.remove(&located.record.reservation(claim));
                }
            }
        }
        let repeated: usize = records
            .iter()
            .filter(|located| persisted.already_decided.contains(&located.record.batch))
            .map(|located| located.record.claims.len())
            .sum();
        metrics.claims_persisted.inc_by((claims - repeated) as u64);
        metrics.coupons_issued.inc_by(persisted.issued);
        metrics.already_decided.inc_by(persisted.already_decided.len() as u64);
        for (user, request, reservation, reason) in &persisted.rejected {
            metrics.revoked(*reason).inc();
            tracing::warn!(
                campaign = %self.campaign.name, %user, %request, %reservation, reason = reason.as_str(),
                "a stored claim got no row"
            );
        }
        if persisted.issued > 0 {
            shared.events.notify_one();
        }
        // One at a time: Redis must not be asked for more than the database can follow.
        self.settled().await;
        let settlement = Settlement {
            shared,
            campaign: self.campaign.clone(),
            persisted,
            stop: self.stop.clone(),
        };
        self.settling = Some(tokio::spawn(settlement.run()));
    }

    /// Waits until the last transaction's claims are settled, or left to the sweeper.
    async fn settled(&mut self) {
        if let Some(settling) = self.settling.take()
            && let Err(error) = settling.await
        {
            tracing::error!(%error, campaign = %self.campaign.name, "decided claims were not settled, the sweeper will");
        }
    }

    /// The database refuses the data of this batch. Halve it until the record stands alone; then try that one a few
    /// times; then find its refused claims.
    async fn refused(&mut self, records: &[LocatedRecord], error: &DatabaseError) -> Result<Step, StepError> {
        self.shared.metrics.retry("data");
        let [located] = records else {
            self.max_records = (records.len() / 2).max(1);
            return Ok(Step::Done);
        };
        let record = &located.record;
        let refused = match &mut self.refused {
            Some(refused) if refused.batch == record.batch => refused,
            other => other.insert(RefusedRecord {
                batch: record.batch.clone(),
                tries: 0,
                first_failure: jiff::Timestamp::now(),
            }),
        };
        refused.tries += 1;
        tracing::warn!(
            %error, campaign = %self.campaign.name, batch = %record.batch, tries = refused.tries,
            "the database refuses a record"
        );
        if refused.tries < TRIES {
            return Ok(Step::Retry);
        }
        let (attempts, first_failure) = (refused.tries, refused.first_failure);
        self.give_up(located, attempts, first_failure).await
    }

    async fn give_up(
        &mut self,
        located: &LocatedRecord,
        attempts: u32,
        first_failure: jiff::Timestamp,
    ) -> Result<Step, StepError> {
        let shared = self.shared.clone();
        let record = &located.record;
        // A commit whose answer was lost has decided it: its rows are there, nothing may be given up.
        let batches = std::slice::from_ref(&record.batch);
        if !shared
            .database
            .decided_batches(self.campaign.id, batches)
            .await?
            .is_empty()
        {
            return Ok(Step::Retry);
        }
        let mut fresh = dead_letter::refused_claims(&shared.database, record).await?;
        fresh.retain(|refused| {
            !self
                .dead
                .contains_key(&record.reservation(&record.claims[refused.index]))
        });
        if fresh.is_empty() {
            // No claim is at fault by itself: nothing is given up.
            return Ok(Step::Retry);
        }
        if let Err(wait) = self.budget.spend(fresh.len(), Instant::now()) {
            return Ok(self.too_many_dead_letters(fresh.len() as i64, wait.min(WAITING)).await);
        }
        let key = self.campaign.name.to_string();
        for refused in fresh {
            let claim = &record.claims[refused.index];
            let value = dead_letter::one_claim(record, claim).map_err(dead_letter::DeadLetterError::from)?;
            dead_letter::publish(
                &shared.producer,
                &shared.naming.dlq_topic(),
                &DeadLetter {
                    key: Some(key.as_bytes()),
                    value: &value,
                    reason: &refused.reason,
                    attempts,
                    topic: shared.assignment.topic(),
                    partition: located.partition,
                    offset: located.offset,
                    first_failure,
                },
            )
            .await?;
            shared.metrics.dead_letter("claim");
            let reservation = record.reservation(claim);
            tracing::warn!(
                campaign = %self.campaign.name, %reservation, user = %claim.user_id, reason = refused.reason,
                "a claim is a dead letter"
            );
            self.dead.insert(reservation, refused.reason);
        }
        Ok(Step::Done)
    }

    async fn too_many_dead_letters(&mut self, count: i64, wait: Duration) -> Step {
        tracing::warn!(
            campaign = %self.campaign.name, count,
            "too many dead letters within a minute: the campaign's claims wait"
        );
        self.unlock().await;
        self.shared.metrics.campaigns_waiting.inc();
        pause(wait, &self.stop).await;
        self.shared.metrics.campaigns_waiting.dec();
        Step::Done
    }
}

/// What is left to do in Redis after a transaction.
struct Settlement {
    shared: Arc<Persistence>,
    campaign: CampaignKey,
    persisted: Persisted,
    stop: CancellationToken,
}

impl Settlement {
    async fn run(self) {
        if let Err(error) = self.settle().await {
            self.shared.metrics.retry("settle");
            tracing::warn!(%error, campaign = %self.campaign.name, "decided claims could not be settled, the sweeper will");
        }
    }

    async fn settle(&self) -> Result<(), StepError> {
        let decided_before: Vec<BatchId> = self.persisted.already_decided.iter().cloned().collect();
        let mut release: Vec<(UserId, Reservation)> = self
            .persisted
            .rejected
            .iter()
            .map(|(user, _, reservation, _)| (user.clone(), reservation.clone()))
            .collect();
        if !decided_before.is_empty() {
            release.extend(
                self.shared
                    .database
                    .rejected_claims(self.campaign.id, &decided_before)
                    .await?,
            );
        }
        let batches: Vec<BatchId> = self.persisted.decided.iter().cloned().chain(decided_before).collect();
        let mut backoff = Backoff::default();
        for last in (0..SETTLE_TRIES).map(|try_| try_ + 1 == SETTLE_TRIES) {
            match release_and_settle(&self.shared.state, &self.campaign.name, &release, &batches).await {
                Ok(_) => return Ok(()),
                Err(error) if last => return Err(error.into()),
                Err(_) => {
                    backoff.pause(&self.stop).await;
                }
            }
        }
        Ok(())
    }
}

fn claims_of(records: &[LocatedRecord]) -> usize {
    records.iter().map(|located| located.record.claims.len()).sum()
}

/// Brings decided batches to their end in the state: always release first, then settle, so that a crash between leaves
/// the batch to the sweeper. A missing state is nothing to do: the rebuild reads the truth.
pub async fn release_and_settle(
    state: &StateStore,
    campaign: &CampaignName,
    release: &[(UserId, Reservation)],
    batches: &[BatchId],
) -> Result<Transition, RedisError> {
    if mutant::is(Mutant::SettleBeforeRelease) {
        state.settle(campaign, batches).await?;
    }
    if !release.is_empty() {
        match state.release(campaign, release).await? {
            Transition::Done(_) => {}
            other => return Ok(other),
        }
    }
    state.settle(campaign, batches).await
}
