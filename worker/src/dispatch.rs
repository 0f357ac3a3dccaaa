//! From the consumer to the tasks of the campaigns. Never waits for Postgres or Redis itself, so that a rebalance is
//! seen at once.

use std::{collections::HashMap, sync::Arc};

use campaign::{
    kafka::consumer::{ConsumedRecord, ConsumerEvent},
    postgres::persist::LocatedRecord,
    record::ClaimRecord,
};
use tokio::{
    sync::mpsc::{Receiver, UnboundedSender, error::SendError, unbounded_channel},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    assignment::Place,
    backoff::Backoff,
    campaign_queue::{CampaignQueue, Ready},
    dead_letter::{self, DeadLetter},
    persist::{CampaignKey, CampaignTask, Persistence},
};

/// A task ended in a way that is a defect: the worker has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// It panicked.
    #[error("a task of the worker panicked: {0}; the worker stops, its claims are read again")]
    Panicked(String),
    /// The consumer's thread has ended.
    #[error("the Kafka consumer ended by itself; the worker stops")]
    ConsumerEnded,
}

/// Reads the claims' topic and hands each record to its campaign's task.
pub struct Dispatcher {
    shared: Arc<Persistence>,
    stop: CancellationToken,
    campaigns: HashMap<CampaignKey, UnboundedSender<Ready>>,
    undecodable: UnboundedSender<Undecodable>,
    tasks: JoinSet<()>,
}

/// Bytes that are no record.
struct Undecodable {
    record: ConsumedRecord,
    place: Place,
    reason: String,
}

impl Dispatcher {
    /// Runs until `stop` is cancelled; then until every campaign's transaction under way is finished and settled.
    pub async fn run(
        shared: Arc<Persistence>,
        mut events: Receiver<ConsumerEvent>,
        stop: CancellationToken,
    ) -> Result<(), DispatchError> {
        let (undecodable, arrivals) = unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(bury_undecodable(shared.clone(), arrivals, stop.clone()));
        let mut dispatcher = Self {
            shared,
            stop,
            campaigns: HashMap::new(),
            undecodable,
            tasks,
        };
        let result = dispatcher.dispatch(&mut events).await;
        // A failed dispatcher takes the others down with it.
        dispatcher.stop.cancel();
        drop(dispatcher.undecodable);
        while let Some(ended) = dispatcher.tasks.join_next().await {
            ended.map_err(|error| DispatchError::Panicked(error.to_string()))?;
        }
        result
    }

    async fn dispatch(&mut self, events: &mut Receiver<ConsumerEvent>) -> Result<(), DispatchError> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next() => {
                    ended.map_err(|error| DispatchError::Panicked(error.to_string()))?;
                    self.campaigns.retain(|_, queue| !queue.is_closed());
                }
                event = events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => return Err(DispatchError::ConsumerEnded),
                },
            }
        }
    }

    fn on_event(&mut self, event: ConsumerEvent) {
        match event {
            ConsumerEvent::Assigned(partitions) => {
                tracing::info!(?partitions, "partitions assigned");
                self.shared.assignment.assigned(&partitions);
                self.tasks.spawn(start_held(self.shared.clone(), self.stop.clone()));
            }
            ConsumerEvent::Revoked(partitions) => {
                tracing::info!(?partitions, "partitions revoked");
                self.shared.assignment.revoked(&partitions);
            }
            ConsumerEvent::Started { partition, offset } => self.shared.assignment.started(partition, offset),
            ConsumerEvent::Record(record) => self.on_record(record),
        }
    }

    fn on_record(&mut self, record: ConsumedRecord) {
        let decoded = ClaimRecord::decode(&record.value);
        let claims = decoded.as_ref().map_or(1, |decoded| decoded.claims.len());
        let Some(place) = self.shared.assignment.receive(record.partition, record.offset, claims) else {
            return;
        };
        match decoded {
            Ok(decoded) => self.hand_over(Ready {
                located: LocatedRecord {
                    partition: record.partition,
                    offset: record.offset,
                    record: decoded,
                },
                place,
            }),
            Err(error) => {
                // The receiver lives as long as the dispatcher, or the worker is about to stop.
                let _ = self.undecodable.send(Undecodable {
                    record,
                    place,
                    reason: error.to_string(),
                });
            }
        }
    }

    fn hand_over(&mut self, ready: Ready) {
        let key = CampaignKey {
            id: ready.located.record.id,
            name: ready.located.record.campaign.clone(),
        };
        let ready = match self.campaigns.get(&key) {
            Some(queue) => match queue.send(ready) {
                Ok(()) => return,
                // Its task was idle and has gone.
                Err(SendError(ready)) => ready,
            },
            None => ready,
        };
        let (queue, arrivals) = unbounded_channel();
        self.tasks.spawn(
            CampaignTask::new(
                self.shared.clone(),
                key.clone(),
                CampaignQueue::new(arrivals),
                self.stop.clone(),
            )
            .run(),
        );
        // The task has just been made: its receiver is there.
        let _ = queue.send(ready);
        self.campaigns.insert(key, queue);
    }
}

async fn start_held(shared: Arc<Persistence>, stop: CancellationToken) {
    let mut backoff = Backoff::default();
    while let Err(error) = shared.assignment.start_held().await {
        shared.metrics.retry("postgres");
        tracing::warn!(%error, "the stored offsets cannot be read, new partitions wait");
        if !backoff.pause(&stop).await {
            return;
        }
    }
}

/// One by one: this happens when something else writes to our topic.
async fn bury_undecodable(
    shared: Arc<Persistence>,
    mut arrivals: tokio::sync::mpsc::UnboundedReceiver<Undecodable>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::default();
    loop {
        let undecodable = tokio::select! {
            () = stop.cancelled() => return,
            arrival = arrivals.recv() => match arrival {
                Some(undecodable) => undecodable,
                None => return,
            },
        };
        let record = &undecodable.record;
        let first_failure = jiff::Timestamp::now();
        let mut attempts = 0;
        // Of a window that began again, it is read again.
        while shared.assignment.is_current(undecodable.place) {
            attempts += 1;
            let published = dead_letter::publish(
                &shared.producer,
                &shared.naming.dlq_topic(),
                &DeadLetter {
                    key: record.key.as_deref(),
                    value: &record.value,
                    reason: &undecodable.reason,
                    attempts,
                    topic: shared.assignment.topic(),
                    partition: record.partition,
                    offset: record.offset,
                    first_failure,
                },
            )
            .await;
            match published {
                Ok(()) => {
                    backoff.reset();
                    shared.metrics.dead_letter("bytes");
                    tracing::warn!(
                        partition = record.partition,
                        offset = record.offset,
                        reason = undecodable.reason,
                        "bytes that are no record are a dead letter"
                    );
                    shared.assignment.finished(&[undecodable.place]);
                    break;
                }
                Err(error) => {
                    shared.metrics.retry("dead_letter");
                    tracing::warn!(%error, partition = record.partition, offset = record.offset, "bytes that are no record wait");
                    if !backoff.pause(&stop).await {
                        return;
                    }
                }
            }
        }
    }
}
