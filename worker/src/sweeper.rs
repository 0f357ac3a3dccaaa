//! Brings reserved batches to an end that nobody else will: an intake died before it published, or a worker died
//! between its commit and the settlement. One at a time in the installation, under a lock.
//!
//! The order is what makes it right. First the batches that are older than a publish may take; *then* the end offsets:
//! a record of such a batch, if there is one, lies before them. Then `consumed`, then the decisions: what was consumed
//! has its decision. What is neither decided nor in what is still to be read will never come, or too late: the
//! transaction that abandons it makes a late worker find it decided.

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use campaign::{
    identity::{BatchId, RequestId, Reservation, UserId},
    kafka::{
        client::KafkaError,
        offsets::{PastEnd, TopicReader, Watermarks},
    },
    mutant::{self, Mutant},
    name::CampaignName,
    naming::Naming,
    postgres::{
        batch::{Abandon, BatchOutcome},
        campaign::CampaignRow,
        database::{Database, DatabaseError},
    },
    record::ClaimRecord,
    redis::{
        connection::RedisError,
        lock::{Held, Locks},
        state::{StateAnswer, StateStore, Transition},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{backoff::pause, metrics::Metrics, persist::release_and_settle};

const LEASE: Duration = Duration::from_secs(15);
/// Most batches of one campaign in one sweep.
const BATCHES: usize = 1_000;

/// Sweeps.
pub struct Sweeper {
    /// The truth.
    pub database: Database,
    /// The state.
    pub state: StateStore,
    /// Locks.
    pub locks: Locks,
    /// Reads the claims' topic.
    pub reader: TopicReader,
    /// Names.
    pub naming: Naming,
    /// `publishTimeout` plus the clock margin.
    pub settle_after: Duration,
    /// Pause between two sweeps.
    pub interval: Duration,
    /// Counters.
    pub metrics: Metrics,
}

/// Why a sweep ended early; the next one starts anew.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Redis.
    #[error("sweep: {0}")]
    Redis(#[from] RedisError),
    /// Postgres.
    #[error("sweep: {0}")]
    Database(#[from] DatabaseError),
    /// Kafka.
    #[error("sweep: {0}")]
    Kafka(#[from] KafkaError),
    /// `consumed` and the topic do not fit together.
    #[error(
        "sweep: partition {} is consumed up to {}, but ends at {}; nothing is abandoned until the topic is restored",
        .0.partition, .0.consumed, .0.end
    )]
    AheadOfKafka(PastEnd),
    /// `consumed` went back while we looked, as after a restore.
    #[error("sweep: the stored offsets went back, starting anew")]
    ConsumedBehind,
    /// As [`Self::AheadOfKafka`], found before: the topic may have grown past `consumed` since.
    #[error("sweep: the topic of claims was made anew or cut back; nothing is abandoned until it is accepted")]
    TopicShortened,
    /// The lock was lost.
    #[error("sweep: the lock was lost")]
    LockLost,
}

/// What was swept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Batches that were in no record.
    pub abandoned: usize,
    /// Batches that had an outcome and were not settled.
    pub as_stored: usize,
    /// Batches that wait for a worker.
    pub left: usize,
    /// Discarded dead letters whose release was confirmed.
    pub discarded: usize,
    /// Campaigns that could not be read or written, once for each step that failed.
    pub failed: usize,
}

/// What is still to be read up to the end offsets: partition → (from, to). A partition that was never consumed counts
/// from 0. What retention has removed before it was consumed will never come: the reader says so and goes on after it.
pub fn unread(consumed: &HashMap<i32, i64>, watermarks: &HashMap<i32, Watermarks>) -> HashMap<i32, (i64, i64)> {
    watermarks
        .iter()
        .filter_map(|(&partition, marks)| {
            let from = consumed.get(&partition).copied().unwrap_or(0);
            (from < marks.high).then_some((partition, (from, marks.high)))
        })
        .collect()
}

/// What is to be done with a batch that is older than a publish may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has an outcome.
    AsStored,
    /// It is in no record and never will be in time.
    Abandon,
    /// Its record waits for a worker.
    LeaveToWorker,
}

/// Decides about one batch. `outcome` was read after `consumed`; `in_kafka`: whether it is among the records from
/// `consumed` up to the end offsets, all of which were read.
pub fn verdict(outcome: Option<BatchOutcome>, in_kafka: bool) -> Verdict {
    match (outcome, in_kafka) {
        (Some(_), _) => Verdict::AsStored,
        (None, true) => Verdict::LeaveToWorker,
        (None, false) => Verdict::Abandon,
    }
}

impl Sweeper {
    /// Sweeps again and again, as long as this worker has the lock.
    pub async fn run(self, stop: CancellationToken) {
        let mut lock: Option<Held> = None;
        while pause(self.interval.mul_f64(rand::random_range(0.8..1.2)), &stop).await {
            if lock.as_ref().is_none_or(|held| !held.is_held()) {
                lock = match self.locks.try_acquire(&self.naming.sweeper_lock(), LEASE, 0).await {
                    Ok(held) => held,
                    Err(error) => {
                        tracing::warn!(%error, "the sweeper's lock cannot be asked for");
                        None
                    }
                };
            }
            let Some(held) = &lock else { continue };
            match self.sweep(held).await {
                Ok(swept) if swept != Swept::default() => {
                    tracing::info!(
                        abandoned = swept.abandoned,
                        as_stored = swept.as_stored,
                        left = swept.left,
                        discarded = swept.discarded,
                        failed = swept.failed,
                        "swept"
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    self.metrics.sweeps_undecided.inc();
                    tracing::warn!(%error, "sweep ended early");
                }
            }
        }
        if let Some(held) = lock {
            let _ = held.release().await;
        }
    }

    /// One sweep over all live campaigns. A campaign that cannot be read or written is counted and left to the next
    /// sweep: it does not stop the others.
    pub async fn sweep(&self, held: &Held) -> Result<Swept, SweepError> {
        let campaigns = self.database.live_campaigns().await?;
        let mut swept = Swept::default();
        self.release_discarded(&campaigns, &mut swept).await?;

        let topic = self.naming.requests_topic();
        let too_early = match mutant::is(Mutant::EndOffsetsBeforeExpired) {
            true => Some(self.reader.watermarks(&topic).await?),
            false => None,
        };
        // First what is older than a publish may take, then the end offsets, then `consumed`, then the decisions.
        let mut expired = Vec::new();
        for campaign in campaigns {
            let batches = self.expired(&campaign).await;
            match self.unless_failed(&campaign.name, batches, &mut swept) {
                Some(batches) if !batches.is_empty() => expired.push((campaign, batches)),
                _ => {}
            }
        }
        if expired.is_empty() {
            return Ok(swept);
        }
        let watermarks = match too_early {
            Some(watermarks) => watermarks,
            None => self.reader.watermarks(&topic).await?,
        };
        let consumed = self.database.consumed(&topic).await?;

        // What has an outcome needs no look into Kafka.
        let mut undecided = Vec::new();
        for (campaign, batches) in expired {
            let settled = self.settle_decided(&campaign, batches, &mut swept).await;
            match self.unless_failed(&campaign.name, settled, &mut swept) {
                Some(batches) if !batches.is_empty() => undecided.push((campaign, batches)),
                _ => {}
            }
        }
        if undecided.is_empty() {
            return Ok(swept);
        }
        let wanted = undecided
            .iter()
            .flat_map(|(_, batches)| batches.iter().cloned())
            .collect();
        let in_kafka = self.in_kafka(&topic, wanted, &consumed, &watermarks).await?;
        for (campaign, batches) in undecided {
            let (left, lost): (Vec<BatchId>, Vec<BatchId>) = batches
                .into_iter()
                .partition(|batch| verdict(None, in_kafka.contains(batch)) == Verdict::LeaveToWorker);
            swept.left += left.len();
            if !held.is_held() {
                return Err(SweepError::LockLost);
            }
            match self.abandon(&topic, &campaign, lost, &consumed, &mut swept).await {
                Err(error @ (SweepError::ConsumedBehind | SweepError::TopicShortened)) => return Err(error),
                result => self.unless_failed(&campaign.name, result, &mut swept),
            };
        }
        Ok(swept)
    }

    /// Counts what went wrong with one campaign.
    fn unless_failed<T>(&self, campaign: &CampaignName, result: Result<T, SweepError>, swept: &mut Swept) -> Option<T> {
        result
            .inspect_err(|error| {
                swept.failed += 1;
                self.metrics.sweeps_undecided.inc();
                tracing::warn!(%error, %campaign, "a campaign could not be swept, the next sweep tries again");
            })
            .ok()
    }

    /// Batches that are older than a publish may take.
    async fn expired(&self, campaign: &CampaignRow) -> Result<Vec<BatchId>, SweepError> {
        let older_than = i64::try_from(self.settle_after.as_millis()).unwrap_or(i64::MAX);
        let batches = self
            .state
            .expired_batches(&campaign.name, older_than, BATCHES)
            .await?
            .unwrap_or_default();
        if batches.is_empty() {
            return Ok(batches);
        }
        // A state that an archived campaign of this name has left is none of ours.
        match self.state.state(&campaign.name).await? {
            StateAnswer::Present(numbers) if numbers.campaign == campaign.id => Ok(batches),
            _ => Ok(Vec::new()),
        }
    }

    /// Settles the batches that have an outcome; answers the others.
    async fn settle_decided(
        &self,
        campaign: &CampaignRow,
        batches: Vec<BatchId>,
        swept: &mut Swept,
    ) -> Result<Vec<BatchId>, SweepError> {
        let outcomes = self.database.decided_batches(campaign.id, &batches).await?;
        let (decided, undecided): (Vec<BatchId>, Vec<BatchId>) = batches
            .into_iter()
            .partition(|batch| verdict(outcomes.get(batch).copied(), true) == Verdict::AsStored);
        self.settle_as_stored(campaign, &decided).await?;
        swept.as_stored += decided.len();
        self.metrics.swept("as_stored", decided.len());
        Ok(undecided)
    }

    /// Which of the batches lie between `consumed` and the end offsets.
    async fn in_kafka(
        &self,
        topic: &str,
        wanted: HashSet<BatchId>,
        consumed: &HashMap<i32, i64>,
        watermarks: &HashMap<i32, Watermarks>,
    ) -> Result<HashSet<BatchId>, SweepError> {
        if let Some(found) = self.reader.past_end(topic, consumed, watermarks).await? {
            return Err(SweepError::AheadOfKafka(found));
        }
        let unread = unread(consumed, watermarks);
        if unread.is_empty() || mutant::is(Mutant::NoEndOffsets) {
            return Ok(HashSet::new());
        }
        let found = Arc::new(Mutex::new(HashSet::new()));
        let sink = found.clone();
        let from = unread
            .iter()
            .map(|(&partition, &(from, _))| (partition, from))
            .collect();
        let to = unread.iter().map(|(&partition, &(_, to))| (partition, to)).collect();
        self.reader
            .read(topic, from, to, move |_, _, value| {
                if let Ok(record) = ClaimRecord::decode(value)
                    && wanted.contains(&record.batch)
                {
                    sink.lock().unwrap_or_else(PoisonError::into_inner).insert(record.batch);
                }
                ControlFlow::Continue(())
            })
            .await?;
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(found)
    }

    async fn abandon(
        &self,
        topic: &str,
        campaign: &CampaignRow,
        batches: Vec<BatchId>,
        consumed: &HashMap<i32, i64>,
        swept: &mut Swept,
    ) -> Result<(), SweepError> {
        if batches.is_empty() {
            return Ok(());
        }
        let mut claims: HashMap<BatchId, Vec<(UserId, RequestId, Reservation)>> = HashMap::new();
        // A state that has gone meanwhile is rebuilt without what is in no record.
        let Some(found) = self.state.claims_of(&campaign.name, &batches).await? else {
            return Ok(());
        };
        for claim in found {
            claims.entry(claim.2.batch.clone()).or_default().push(claim);
        }
        for batch in batches {
            let of_batch = claims.remove(&batch).unwrap_or_default();
            match self
                .database
                .abandon(topic, campaign.id, &batch, &of_batch, consumed)
                .await?
            {
                Abandon::Abandoned => {
                    swept.abandoned += 1;
                    self.metrics.swept("abandoned", 1);
                    tracing::info!(campaign = %campaign.name, %batch, claims = of_batch.len(), "batch abandoned");
                    let release: Vec<(UserId, Reservation)> = of_batch
                        .into_iter()
                        .map(|(user, _, reservation)| (user, reservation))
                        .collect();
                    release_and_settle(&self.state, &campaign.name, &release, &[batch]).await?;
                }
                Abandon::Decided(_) => self.settle_as_stored(campaign, &[batch]).await?,
                Abandon::ConsumedBehind => return Err(SweepError::ConsumedBehind),
                Abandon::TopicShortened => return Err(SweepError::TopicShortened),
            }
        }
        Ok(())
    }

    async fn settle_as_stored(&self, campaign: &CampaignRow, batches: &[BatchId]) -> Result<(), SweepError> {
        if !batches.is_empty() {
            let release = self.database.rejected_claims(campaign.id, batches).await?;
            release_and_settle(&self.state, &campaign.name, &release, batches).await?;
        }
        Ok(())
    }

    /// A discarded dead letter keeps its entry until its slot is surely free: a crash between leaves it to us.
    async fn release_discarded(&self, campaigns: &[CampaignRow], swept: &mut Swept) -> Result<(), SweepError> {
        let mut by_campaign: HashMap<_, (CampaignName, Vec<(UserId, Reservation)>)> = HashMap::new();
        for parked in self.database.discarded().await? {
            by_campaign
                .entry(parked.campaign)
                .or_insert_with(|| (parked.campaign_name.clone(), Vec::new()))
                .1
                .push((parked.user, parked.reservation));
        }
        for (id, (name, claims)) in by_campaign {
            // One that is not live has no state any more.
            let live = campaigns.iter().any(|campaign| campaign.id == id);
            if live {
                let released = self.state.release(&name, &claims).await.map_err(SweepError::from);
                match self.unless_failed(&name, released, swept) {
                    Some(Transition::Done(_)) => {}
                    _ => continue,
                }
            }
            let reservations: Vec<Reservation> = claims.into_iter().map(|(_, reservation)| reservation).collect();
            self.database.forget_parked(id, &reservations).await?;
            swept.discarded += reservations.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn only_what_is_undecided_and_in_no_record_may_be_abandoned() {
        for (outcome, in_kafka, want) in [
            (None, false, Verdict::Abandon),
            (None, true, Verdict::LeaveToWorker),
            (Some(BatchOutcome::Stored), false, Verdict::AsStored),
            (Some(BatchOutcome::Stored), true, Verdict::AsStored),
            (Some(BatchOutcome::Abandoned), false, Verdict::AsStored),
            (Some(BatchOutcome::Stale), true, Verdict::AsStored),
        ] {
            assert_eq!(verdict(outcome, in_kafka), want, "{outcome:?} {in_kafka}");
        }
    }

    #[test]
    fn what_is_not_consumed_is_still_to_be_read() {
        let marks = |low, high| HashMap::from([(0, Watermarks { low: 0, high: 3 }), (1, Watermarks { low, high })]);
        let consumed = |offset| HashMap::from([(0, 3), (1, offset)]);
        let from_to = |partition, from, to| HashMap::from([(partition, (from, to))]);
        for (consumed, marks, want) in [
            (consumed(9), marks(5, 9), HashMap::new()),
            (consumed(7), marks(5, 9), from_to(1, 7, 9)),
            // A worker went on after the end offsets were read.
            (consumed(11), marks(5, 9), HashMap::new()),
            // Never consumed is from 0.
            (HashMap::new(), marks(0, 0), from_to(0, 0, 3)),
            // Removed by retention before it was consumed.
            (consumed(4), marks(9, 9), from_to(1, 4, 9)),
        ] {
            assert_eq!(unread(&consumed, &marks), want);
        }
    }
}
