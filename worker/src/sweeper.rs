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
        offsets::{TopicReader, Watermarks},
    },
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
        "sweep: partition {partition} is consumed up to {consumed}, but the topic has {low} to {high}; nothing is abandoned"
    )]
    Unknown {
        /// Which.
        partition: i32,
        /// In Postgres.
        consumed: i64,
        /// Oldest record in Kafka.
        low: i64,
        /// Next offset in Kafka.
        high: i64,
    },
    /// `consumed` went back while we looked, as after a restore.
    #[error("sweep: the stored offsets went back, starting anew")]
    ConsumedBehind,
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
}

/// How far the records up to the end offsets are accounted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// All of them are consumed.
    Consumed,
    /// These are still to be read: partition → (from, to).
    Unread(HashMap<i32, (i64, i64)>),
}

/// Holds `consumed` against the topic. A partition that was never consumed counts from 0. Where the numbers do not fit
/// (records lost before they were consumed, a topic that was made anew) nothing can be said.
pub fn coverage(consumed: &HashMap<i32, i64>, watermarks: &HashMap<i32, Watermarks>) -> Result<Coverage, SweepError> {
    let mut unread = HashMap::new();
    for (&partition, &Watermarks { low, high }) in watermarks {
        let consumed = consumed.get(&partition).copied().unwrap_or(0);
        if consumed < low || consumed > high {
            return Err(SweepError::Unknown {
                partition,
                consumed,
                low,
                high,
            });
        }
        if consumed < high {
            unread.insert(partition, (consumed, high));
        }
    }
    Ok(if unread.is_empty() {
        Coverage::Consumed
    } else {
        Coverage::Unread(unread)
    })
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

struct Expired {
    campaign: CampaignRow,
    batches: Vec<BatchId>,
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

    /// One sweep over all live campaigns.
    pub async fn sweep(&self, held: &Held) -> Result<Swept, SweepError> {
        let campaigns = self.database.live_campaigns().await?;
        let mut swept = Swept {
            discarded: self.release_discarded(&campaigns).await?,
            ..Swept::default()
        };
        let expired = self.expired(campaigns).await?;
        if expired.is_empty() {
            return Ok(swept);
        }
        let topic = self.naming.requests_topic();
        let watermarks = self.reader.watermarks(&topic).await?;
        let consumed = self.database.consumed(&topic).await?;
        let mut judged = Vec::new();
        for Expired { campaign, batches } in expired {
            let outcomes = self.database.decided_batches(campaign.id, &batches).await?;
            judged.push((campaign, batches, outcomes));
        }
        // What has an outcome needs no look into Kafka.
        for (campaign, batches, outcomes) in &judged {
            let decided: Vec<BatchId> = batches
                .iter()
                .filter(|batch| verdict(outcomes.get(*batch).copied(), true) == Verdict::AsStored)
                .cloned()
                .collect();
            self.settle_as_stored(campaign, &decided).await?;
            swept.as_stored += decided.len();
            self.metrics.swept("as_stored", decided.len());
        }
        let undecided: HashSet<BatchId> = judged
            .iter()
            .flat_map(|(_, batches, outcomes)| batches.iter().filter(|batch| !outcomes.contains_key(*batch)))
            .cloned()
            .collect();
        if undecided.is_empty() {
            return Ok(swept);
        }
        let in_kafka = self.in_kafka(&topic, &undecided, &consumed, &watermarks).await?;
        for (campaign, batches, outcomes) in &judged {
            let mut abandon = Vec::new();
            for batch in batches {
                match verdict(outcomes.get(batch).copied(), in_kafka.contains(batch)) {
                    Verdict::AsStored => {}
                    Verdict::LeaveToWorker => swept.left += 1,
                    Verdict::Abandon => abandon.push(batch.clone()),
                }
            }
            if !held.is_held() {
                return Err(SweepError::LockLost);
            }
            let abandoned = self.abandon(&topic, campaign, abandon, &consumed).await?;
            swept.abandoned += abandoned;
            self.metrics.swept("abandoned", abandoned);
        }
        Ok(swept)
    }

    /// First step: what is older than a publish may take.
    async fn expired(&self, campaigns: Vec<CampaignRow>) -> Result<Vec<Expired>, SweepError> {
        let older_than = i64::try_from(self.settle_after.as_millis()).unwrap_or(i64::MAX);
        let mut expired = Vec::new();
        for campaign in campaigns {
            let batches = self
                .state
                .expired_batches(&campaign.name, older_than, BATCHES)
                .await?
                .unwrap_or_default();
            if batches.is_empty() {
                continue;
            }
            // A state that an archived campaign of this name has left is none of ours.
            match self.state.state(&campaign.name).await? {
                StateAnswer::Present(numbers) if numbers.campaign == campaign.id => {
                    expired.push(Expired { campaign, batches });
                }
                _ => {}
            }
        }
        Ok(expired)
    }

    /// Which of the batches lie between `consumed` and the end offsets.
    async fn in_kafka(
        &self,
        topic: &str,
        batches: &HashSet<BatchId>,
        consumed: &HashMap<i32, i64>,
        watermarks: &HashMap<i32, Watermarks>,
    ) -> Result<HashSet<BatchId>, SweepError> {
        let Coverage::Unread(unread) = coverage(consumed, watermarks)? else {
            return Ok(HashSet::new());
        };
        let found = Arc::new(Mutex::new(HashSet::new()));
        let (wanted, sink) = (batches.clone(), found.clone());
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
    ) -> Result<usize, SweepError> {
        if batches.is_empty() {
            return Ok(0);
        }
        let mut claims: HashMap<BatchId, Vec<(UserId, RequestId, Reservation)>> = HashMap::new();
        // A state that has gone meanwhile is rebuilt without what is in no record.
        let Some(found) = self.state.claims_of(&campaign.name, &batches).await? else {
            return Ok(0);
        };
        for claim in found {
            claims.entry(claim.2.batch.clone()).or_default().push(claim);
        }
        let mut abandoned = 0;
        for batch in batches {
            let of_batch = claims.remove(&batch).unwrap_or_default();
            match self
                .database
                .abandon(topic, campaign.id, &batch, &of_batch, consumed)
                .await?
            {
                Abandon::Abandoned => {
                    abandoned += 1;
                    tracing::info!(campaign = %campaign.name, %batch, claims = of_batch.len(), "batch abandoned");
                    let release: Vec<(UserId, Reservation)> = of_batch
                        .into_iter()
                        .map(|(user, _, reservation)| (user, reservation))
                        .collect();
                    release_and_settle(&self.state, &campaign.name, &release, &[batch]).await?;
                }
                Abandon::Decided(_) => self.settle_as_stored(campaign, &[batch]).await?,
                Abandon::ConsumedBehind => return Err(SweepError::ConsumedBehind),
            }
        }
        Ok(abandoned)
    }

    async fn settle_as_stored(&self, campaign: &CampaignRow, batches: &[BatchId]) -> Result<(), SweepError> {
        if !batches.is_empty() {
            let release = self.database.rejected_claims(campaign.id, batches).await?;
            release_and_settle(&self.state, &campaign.name, &release, batches).await?;
        }
        Ok(())
    }

    /// A discarded dead letter keeps its entry until its slot is surely free: a crash between leaves it to us.
    async fn release_discarded(&self, campaigns: &[CampaignRow]) -> Result<usize, SweepError> {
        let mut by_campaign: HashMap<_, (CampaignName, Vec<(UserId, Reservation)>)> = HashMap::new();
        for parked in self.database.discarded().await? {
            by_campaign
                .entry(parked.campaign)
                .or_insert_with(|| (parked.campaign_name.clone(), Vec::new()))
                .1
                .push((parked.user, parked.reservation));
        }
        let mut released = 0;
        for (id, (name, claims)) in by_campaign {
            // An archived campaign has no state any more.
            let live = campaigns.iter().any(|campaign| campaign.id == id);
            if live && !matches!(self.state.release(&name, &claims).await?, Transition::Done(_)) {
                continue;
            }
            let reservations: Vec<Reservation> = claims.into_iter().map(|(_, reservation)| reservation).collect();
            self.database.forget_parked(id, &reservations).await?;
            released += reservations.len();
        }
        Ok(released)
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
    fn coverage_tells_what_is_still_to_be_read() {
        let marks = |low, high| HashMap::from([(0, Watermarks { low: 0, high: 3 }), (1, Watermarks { low, high })]);
        let consumed = |offset| HashMap::from([(0, 3), (1, offset)]);
        assert_eq!(coverage(&consumed(9), &marks(5, 9)).unwrap(), Coverage::Consumed);
        assert_eq!(
            coverage(&consumed(7), &marks(5, 9)).unwrap(),
            Coverage::Unread(HashMap::from([(1, (7, 9))]))
        );
        assert_eq!(
            coverage(&HashMap::new(), &marks(0, 0)).unwrap(),
            Coverage::Unread(HashMap::from([(0, (0, 3))])),
            "never consumed is from 0"
        );
    }

    #[test]
    fn numbers_that_do_not_fit_decide_nothing() {
        let marks = |low, high| HashMap::from([(1, Watermarks { low, high })]);
        for (consumed, low, high) in [(4, 5, 9), (10, 5, 9), (0, 9, 9)] {
            let result = coverage(&HashMap::from([(1, consumed)]), &marks(low, high));
            assert!(
                matches!(result, Err(SweepError::Unknown { partition: 1, .. })),
                "{consumed} {low} {high}"
            );
        }
    }
}
