//! Projects `coupon.lifecycle` into `coupon_activity`. Repeats are dropped by their event id.

use std::{sync::Arc, time::Duration};

use campaign::{
    event::LifecycleEvent,
    kafka::consumer::{ConsumedRecord, ConsumerEvent},
    postgres::{
        database::{Database, DatabaseError},
        persist::PersistError,
    },
};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::{
    assignment::{Assignment, Place},
    backoff::Backoff,
    metrics::Metrics,
};

/// Most events of one transaction.
const BATCH: usize = 1_000;

/// Between two looks whether the offsets may be moved.
const TURN: Duration = Duration::from_millis(5);

/// Projects.
pub struct Projection {
    /// Holds the projection.
    pub database: Database,
    /// The partitions of the lifecycle topic.
    pub assignment: Arc<Assignment>,
    /// Counters.
    pub metrics: Metrics,
}

/// An event that was read; `None`: bytes that are none.
struct Arrival {
    place: Place,
    event: Option<LifecycleEvent>,
}

impl Projection {
    /// Projects until `stop` is cancelled. Answers false if the consumer ended by itself.
    pub async fn run(self, mut events: Receiver<ConsumerEvent>, stop: CancellationToken) -> bool {
        let mut backoff = Backoff::default();
        loop {
            let first = tokio::select! {
                biased;
                () = stop.cancelled() => return true,
                event = events.recv() => match event {
                    Some(event) => event,
                    None => return false,
                },
            };
            let mut arrivals = Vec::new();
            let mut next = Some(first);
            let mut assigned = false;
            while let Some(event) = next.take() {
                match event {
                    ConsumerEvent::Assigned(partitions) => {
                        self.assignment.assigned(&partitions);
                        assigned = true;
                    }
                    ConsumerEvent::Revoked(partitions) => self.assignment.revoked(&partitions),
                    ConsumerEvent::Started { partition, offset } => self.assignment.started(partition, offset),
                    ConsumerEvent::Record(record) => arrivals.extend(self.arrival(&record)),
                }
                if arrivals.len() < BATCH {
                    next = events.try_recv().ok();
                }
            }
            // In this task, not beside it: nothing is delivered before the start, and a rebalance waits in the channel.
            while assigned {
                match self.assignment.start_held().await {
                    Ok(()) => {
                        backoff.reset();
                        assigned = false;
                    }
                    Err(error) => {
                        self.metrics.retry("projection");
                        tracing::warn!(%error, "the stored offsets of the projection cannot be read");
                        if !backoff.pause(&stop).await {
                            return true;
                        }
                    }
                }
            }
            while !arrivals.is_empty() {
                match self.project(&arrivals).await {
                    Ok(()) => {
                        backoff.reset();
                        arrivals.clear();
                    }
                    Err(error) => {
                        self.metrics.retry("projection");
                        tracing::warn!(%error, "events wait to be projected, trying again");
                        if !backoff.pause(&stop).await {
                            return true;
                        }
                    }
                }
                arrivals.retain(|arrival| self.assignment.is_current(arrival.place));
            }
        }
    }

    fn arrival(&self, record: &ConsumedRecord) -> Option<Arrival> {
        let place = self.assignment.receive(record.partition, record.offset, 1)?;
        let event = match serde_json::from_slice(&record.value) {
            Ok(event) => Some(event),
            Err(error) => {
                self.metrics.events_skipped.inc();
                tracing::warn!(
                    %error, partition = record.partition, offset = record.offset,
                    "a record of the lifecycle topic is no event, it is skipped"
                );
                None
            }
        };
        Some(Arrival { place, event })
    }

    async fn project(&self, arrivals: &[Arrival]) -> Result<(), DatabaseError> {
        match self.project_together(arrivals).await {
            Err(DatabaseError::DataRefused { .. }) => {}
            result => return result,
        }
        // One of them is refused: it is skipped, the others are not.
        for arrival in arrivals.chunks(1) {
            match self.project_together(arrival).await {
                Err(error @ DatabaseError::DataRefused { .. }) => {
                    self.metrics.events_skipped.inc();
                    tracing::warn!(
                        %error, partition = arrival[0].place.partition, offset = arrival[0].place.offset,
                        "the database refuses an event, it is skipped"
                    );
                    self.assignment.finished(&[arrival[0].place]);
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// Projects those of the arrivals that are still ours, all or none.
    async fn project_together(&self, arrivals: &[Arrival]) -> Result<(), DatabaseError> {
        loop {
            let current = arrivals
                .iter()
                .filter(|arrival| self.assignment.is_current(arrival.place));
            let (places, events): (Vec<Place>, Vec<Option<LifecycleEvent>>) =
                current.map(|arrival| (arrival.place, arrival.event.clone())).unzip();
            if places.is_empty() {
                return Ok(());
            }
            let events: Vec<LifecycleEvent> = events.into_iter().flatten().collect();
            let carried = self.assignment.begin(&places);
            // Rows that do not move with their offset would be missed if Postgres were put back before it is written.
            if self.assignment.is_complete(&places, &carried) {
                match self
                    .database
                    .project(self.assignment.topic(), &events, carried.advances())
                    .await
                {
                    Ok(new) => {
                        self.metrics.events_projected.inc_by(new);
                        self.assignment.committed(&places, [], carried);
                        return Ok(());
                    }
                    Err(PersistError::Database(error)) => {
                        let refused = matches!(error, DatabaseError::DataRefused { .. });
                        self.assignment.failed(carried, !refused);
                        if !refused {
                            self.assignment.reconcile().await?;
                        }
                        return Err(error);
                    }
                    Err(_) => {}
                }
            }
            // Another transaction moves one of the offsets, or somebody has moved one: that partition is read again from
            // there. What came of the others is still to be projected, for it does not come again.
            self.assignment.failed(carried, false);
            self.assignment.reconcile().await?;
            tokio::time::sleep(TURN).await;
        }
    }
}
