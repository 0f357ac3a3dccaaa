//! Publishes the outbox in order per coupon. One at a time in the installation, under a lock.
//!
//! A row goes once its event is acknowledged and, for a cancel that gives its slot back, once Redis has confirmed the
//! restock. When is that?
//!
//! - `Done`: the slot is free (or was before).
//! - `Rebuilding`, or another epoch than the one we read: a rebuild has read Postgres at a moment that may lie before
//!   the cancel. Again later, with the epoch read anew.
//! - `NotInitialized`: a state that comes to be after this has been built from Postgres after the cancel, and has it
//!   right. But it also means "this is another server", as seen from a replica for a moment: the old state may come
//!   back. So the row stays, until a state confirms it or none can come back any more: the campaign is archived, or its
//!   state has expired (the close and the ttl are over).
//!
//! A row that waits for its restock has been published; it is not published again while this relay lives.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use campaign::{
    identity::{CampaignId, Epoch},
    kafka::producer::{Delivery, Outgoing, Producer},
    mutant::{self, Mutant},
    naming::Naming,
    postgres::{
        campaign::CampaignRow,
        database::{Database, DatabaseError},
        outbox::{OutboxKey, OutboxRow},
    },
    redis::{
        connection::RedisError,
        lock::{Held, Locks},
        state::{StateStore, Transition},
    },
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::{Backoff, pause},
    metrics::Metrics,
};

const LEASE: Duration = Duration::from_secs(15);
/// How often another worker's relay is looked after.
const STANDBY: Duration = Duration::from_secs(2);
/// How often the outbox is looked at without a hint: events also come from other processes.
const LOOK: Duration = Duration::from_millis(250);
/// Pause before a restock that was not confirmed is tried again.
const RESTOCK_AGAIN: Duration = Duration::from_secs(1);
const RESTOCKS_AT_ONCE: usize = 32;

/// Relays.
pub struct Relay {
    /// The outbox.
    pub database: Database,
    /// For restocks.
    pub state: StateStore,
    /// Locks.
    pub locks: Locks,
    /// Publishes.
    pub producer: Producer,
    /// Names.
    pub naming: Naming,
    /// There are new events in this process.
    pub events: Arc<Notify>,
    /// Most events at once.
    pub batch: usize,
    /// Counters.
    pub metrics: Metrics,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// Postgres.
    #[error("relay: {0}")]
    Database(#[from] DatabaseError),
    /// Redis.
    #[error("relay: {0}")]
    Redis(#[from] RedisError),
    /// An event cannot be written as JSON.
    #[error("relay: event {id} cannot be encoded: {source}")]
    Encode {
        /// The outbox row.
        id: i64,
        /// Why.
        source: serde_json::Error,
    },
    /// Some events were not acknowledged.
    #[error("relay: {failed} of {sent} events were not acknowledged ({reason}); check the brokers")]
    NotAcknowledged {
        /// Without acknowledgement.
        failed: usize,
        /// Handed over.
        sent: usize,
        /// The first reason.
        reason: String,
    },
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Rows that are gone now.
    pub done: usize,
    /// Cancels whose restock is not confirmed yet.
    pub later: usize,
}

/// Whether a restock counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restock {
    Confirmed,
    Later,
}

/// Judges what Redis said to a restock; see the module.
fn judge(answer: Transition, campaign: Option<&CampaignRow>, now: Timestamp) -> Restock {
    match answer {
        Transition::Done(_) => Restock::Confirmed,
        Transition::Rebuilding => Restock::Later,
        Transition::NotInitialized => {
            let expired = campaign.is_none_or(|row| {
                row.terms
                    .closes_at
                    .is_some_and(|closes_at| closes_at.as_millisecond() + row.terms.ttl_ms < now.as_millisecond())
            });
            if expired { Restock::Confirmed } else { Restock::Later }
        }
    }
}

impl Relay {
    /// Relays until `stop` is cancelled, whenever this worker has the lock.
    pub async fn run(self, stop: CancellationToken) {
        let mut lock: Option<Held> = None;
        let mut published = HashSet::new();
        let mut backoff = Backoff::default();
        while !stop.is_cancelled() {
            if lock.as_ref().is_none_or(|held| !held.is_held()) {
                lock = match self.locks.try_acquire(&self.naming.relay_lock(), LEASE, 0).await {
                    Ok(held) => held,
                    Err(error) => {
                        tracing::warn!(%error, "the relay's lock cannot be asked for");
                        None
                    }
                };
            }
            if lock.is_none() {
                published.clear();
                pause(STANDBY.mul_f64(rand::random_range(0.5..1.0)), &stop).await;
                continue;
            }
            match self.round(&mut published).await {
                Ok(Round { done, .. }) => {
                    backoff.reset();
                    if done == 0 {
                        tokio::select! {
                            () = self.events.notified() => {}
                            _ = pause(LOOK, &stop) => {}
                        }
                    }
                }
                Err(error) => {
                    self.metrics.retry("relay");
                    tracing::warn!(%error, "events wait, trying again");
                    backoff.pause(&stop).await;
                }
            }
        }
        if let Some(held) = lock {
            let _ = held.release().await;
        }
    }

    /// Publishes what is due, once. `published` holds the rows whose restock is all that is missing.
    pub async fn round(&self, published: &mut HashSet<OutboxKey>) -> Result<Round, RelayError> {
        let page = i64::try_from(self.batch).unwrap_or(i64::MAX);
        let rows = self.database.outbox_next(page).await?;
        self.metrics
            .outbox_rows
            .set(i64::try_from(rows.len()).unwrap_or(i64::MAX));
        let fresh: Vec<&OutboxRow> = rows.iter().filter(|row| !published.contains(&row.key)).collect();
        let (acknowledged, not_acknowledged) = self.publish(&fresh).await?;

        let (restocks, others): (Vec<&OutboxRow>, Vec<&OutboxRow>) = rows.iter().partition(|row| row.restock);
        // What is published goes first: a restock that fails must not make it be published again.
        let done: Vec<OutboxKey> = others
            .iter()
            .map(|row| row.key)
            .filter(|key| acknowledged.contains(key))
            .collect();
        if !done.is_empty() {
            self.database.outbox_done(&done).await?;
        }
        if restocks.is_empty() {
            return match not_acknowledged {
                Some(error) => Err(error),
                None => Ok(Round {
                    done: done.len(),
                    later: 0,
                }),
            };
        }

        // A restock need not wait for the brokers: it is tried whether the event was acknowledged or not.
        published.extend(
            restocks
                .iter()
                .map(|row| row.key)
                .filter(|key| acknowledged.contains(key)),
        );
        let (confirmed, redis_failed) = self.restock(&restocks).await?;
        let (gone, later): (Vec<OutboxKey>, Vec<OutboxKey>) = restocks
            .iter()
            .map(|row| row.key)
            .partition(|key| confirmed.contains(key) && published.contains(key));
        self.database.outbox_done(&gone).await?;
        published.retain(|key| !gone.contains(key));
        // Postponed, so that they do not fill the page: other campaigns' events pass.
        self.database.outbox_postpone(&later, RESTOCK_AGAIN).await?;
        match not_acknowledged.or(redis_failed.map(RelayError::from)) {
            Some(error) => Err(error),
            None => Ok(Round {
                done: done.len() + gone.len(),
                later: later.len(),
            }),
        }
    }

    /// Hands all of them over, then waits for all: the rows that were acknowledged, and what failed.
    async fn publish(&self, rows: &[&OutboxRow]) -> Result<(HashSet<OutboxKey>, Option<RelayError>), RelayError> {
        let topic = self.naming.lifecycle_topic();
        let mut sent = Vec::with_capacity(rows.len());
        for row in rows {
            let value =
                serde_json::to_vec(&row.event).map_err(|source| RelayError::Encode { id: row.key.id, source })?;
            let key = row.event.coupon_id.to_string();
            let delivery = self.producer.send(&Outgoing {
                topic: &topic,
                key: Some(key.as_bytes()),
                value: &value,
                headers: Vec::new(),
            });
            sent.push((row.key, delivery));
        }
        let total = sent.len();
        let mut acknowledged = HashSet::with_capacity(total);
        let mut reason = None;
        for (key, delivery) in sent {
            match delivery.await {
                Ok(Delivery::Acknowledged { .. }) => {
                    acknowledged.insert(key);
                }
                Ok(Delivery::NotStored(why) | Delivery::Unknown(why)) => {
                    reason.get_or_insert(why);
                }
                Err(_) => {
                    reason.get_or_insert("the producer is gone".to_owned());
                }
            }
        }
        self.metrics.events_relayed.inc_by(acknowledged.len() as u64);
        let failure = reason.map(|reason| RelayError::NotAcknowledged {
            failed: total - acknowledged.len(),
            sent: total,
            reason,
        });
        Ok((acknowledged, failure))
    }

    /// Restocks; answers the rows whose restock is confirmed, and the first error that kept one from being so.
    async fn restock(&self, rows: &[&OutboxRow]) -> Result<(HashSet<OutboxKey>, Option<RedisError>), RelayError> {
        // Read after the rows, and so after their cancels.
        let mut epochs: HashMap<CampaignId, Option<Epoch>> = HashMap::new();
        for row in rows {
            if let Entry::Vacant(entry) = epochs.entry(row.event.campaign_id) {
                entry.insert(self.database.epoch_of(row.event.campaign_id).await?);
            }
        }
        let restocks: Vec<_> = rows
            .iter()
            .map(|row| self.restock_one(row, epochs.get(&row.event.campaign_id).copied().flatten()))
            .collect();
        let answers: Vec<_> = stream::iter(restocks).buffered(RESTOCKS_AT_ONCE).collect().await;
        // Once a campaign, not once a row: thousands may wait for a state.
        let mut campaigns: HashMap<CampaignId, Option<CampaignRow>> = HashMap::new();
        let (mut confirmed, mut failure) = (HashSet::new(), None);
        for (row, answer) in rows.iter().zip(answers) {
            let judged = match answer {
                // Archived: there is no state to give the slot back to.
                None => Restock::Confirmed,
                Some(Ok(Transition::NotInitialized)) => {
                    let id = row.event.campaign_id;
                    if let Entry::Vacant(entry) = campaigns.entry(id) {
                        let campaign = self.database.campaign(&row.event.campaign).await?;
                        entry.insert(campaign.filter(|campaign| campaign.id == id));
                    }
                    let campaign = campaigns.get(&id).and_then(Option::as_ref);
                    judge(Transition::NotInitialized, campaign, Timestamp::now())
                }
                Some(Ok(answer)) => judge(answer, None, Timestamp::now()),
                Some(Err(error)) => {
                    failure.get_or_insert(error);
                    Restock::Later
                }
            };
            if judged == Restock::Confirmed || mutant::is(Mutant::RestockNotRepeated) {
                confirmed.insert(row.key);
            }
        }
        Ok((confirmed, failure))
    }

    async fn restock_one(&self, row: &OutboxRow, epoch: Option<Epoch>) -> Option<Result<Transition, RedisError>> {
        let event = &row.event;
        let answer = self
            .state
            .restock(&event.campaign, &event.user_id, event.coupon_id, epoch?)
            .await;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use campaign::{
        name::CampaignName,
        postgres::campaign::{CampaignTerms, OnCancel, OnDeadLetter},
    };

    use super::*;

    fn campaign(closes_at: Option<i64>) -> CampaignRow {
        CampaignRow {
            id: CampaignId(uuid::Uuid::now_v7()),
            name: CampaignName::new("shop", "sale").unwrap(),
            terms: CampaignTerms {
                quantity: 1,
                ttl_ms: 1_000,
                opens_at: None,
                closes_at: closes_at.map(|ms| Timestamp::from_millisecond(ms).unwrap()),
                paused: false,
                on_cancel: OnCancel::Restock,
                on_dead_letter: OnDeadLetter::Park,
                code_prefix: String::new(),
                valid_for_ms: None,
                details: serde_json::Value::Null,
            },
            issued: 0,
            parked: 0,
            epoch: Epoch(1),
            fence: 0,
            revision: 1,
        }
    }

    #[test]
    fn a_missing_state_confirms_only_what_no_state_can_come_back_for() {
        let now = Timestamp::from_millisecond(10_000).unwrap();
        for (answer, row, want) in [
            (Transition::Done(1), Some(campaign(None)), Restock::Confirmed),
            (Transition::Done(0), Some(campaign(None)), Restock::Confirmed),
            (Transition::Rebuilding, Some(campaign(Some(1))), Restock::Later),
            (Transition::NotInitialized, Some(campaign(None)), Restock::Later),
            (Transition::NotInitialized, Some(campaign(Some(9_500))), Restock::Later),
            (
                Transition::NotInitialized,
                Some(campaign(Some(8_999))),
                Restock::Confirmed,
            ),
            (Transition::NotInitialized, None, Restock::Confirmed),
        ] {
            assert_eq!(judge(answer, row.as_ref(), now), want, "{answer:?} {row:?}");
        }
    }
}
