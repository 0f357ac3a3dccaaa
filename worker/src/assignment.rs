//! The partitions that this worker has of one topic: the windows, and the offsets that go to Postgres with the rows.
//!
//! The windows decide (`partition`); this is their edge to the consumer and to Postgres. Lock order: the mutex is never
//! held over an await.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use campaign::{
    kafka::consumer::{GroupConsumer, Membership},
    postgres::{
        consumed::Life,
        database::{Database, DatabaseError},
        persist::{Advance, DecidedBatch, PersistError},
    },
};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::{Backoff, pause},
    partition::{PartitionWindow, Receipt, Standing, WindowLimits},
    silence::{Waiting, left_to_the_client},
};

/// How often the stored offsets are looked at without a cause: after Postgres was put back, nothing else would tell a
/// worker without new records.
const LOOK: Duration = Duration::from_secs(5);
/// Offsets alone are written this long after they could have been, so that one transaction writes many.
const GATHER: Duration = Duration::from_millis(20);

/// A place in a window's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The window's generation when it was read.
    pub generation: u64,
}

/// The advances that one transaction carries. Has to be given back, whatever became of the transaction.
#[derive(Debug)]
#[must_use]
pub struct Carried {
    advances: Vec<Advance>,
    generations: Vec<u64>,
    rests_on: Vec<DecidedBatch>,
}

impl Carried {
    fn nothing() -> Self {
        Self {
            advances: Vec::new(),
            generations: Vec::new(),
            rests_on: Vec::new(),
        }
    }

    fn add(&mut self, advance: Advance, window: &PartitionWindow) {
        self.advances.push(advance);
        self.generations.push(window.generation());
        self.rests_on.extend(window.rests_on().cloned());
    }

    /// What earlier transactions have decided and the advances pass: for the transaction, which fails if it is gone.
    pub fn rests_on(&self) -> &[DecidedBatch] {
        &self.rests_on
    }

    /// For the transaction.
    pub fn advances(&self) -> &[Advance] {
        &self.advances
    }
}

/// The partitions of one topic that are ours now.
pub struct Assignment {
    topic: String,
    consumer: GroupConsumer,
    database: Database,
    limits: WindowLimits,
    backlog: Gauge,
    partitions: Mutex<Partitions>,
    lagging: Notify,
}

#[derive(Default)]
struct Partitions {
    windows: HashMap<i32, PartitionWindow>,
    generation: u64,
}

impl Partitions {
    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    fn current(&mut self, partition: i32, generation: u64) -> Option<&mut PartitionWindow> {
        self.windows
            .get_mut(&partition)
            .filter(|window| window.generation() == generation)
    }
}

impl Assignment {
    /// No partitions yet. `backlog` shows the claims in the windows.
    pub fn new(
        topic: String,
        consumer: GroupConsumer,
        database: Database,
        limits: WindowLimits,
        backlog: Gauge,
    ) -> Self {
        Self {
            topic,
            consumer,
            database,
            limits,
            backlog,
            partitions: Mutex::default(),
            lagging: Notify::new(),
        }
    }

    fn partitions(&self) -> MutexGuard<'_, Partitions> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// These partitions are ours; each is held back until [`Self::start_held`].
    pub fn assigned(&self, partitions: &[i32]) {
        let mut ours = self.partitions();
        for &partition in partitions {
            // What the window before it was paused for has gone with it.
            self.consumer.resume(partition);
            let generation = ours.next_generation();
            ours.windows
                .insert(partition, PartitionWindow::new(partition, self.limits, generation));
        }
    }

    /// These are no longer ours: what is in memory is forgotten, what is under way ends as it ends.
    pub fn revoked(&self, partitions: &[i32]) {
        let mut ours = self.partitions();
        for partition in partitions {
            ours.windows.remove(partition);
        }
        self.show_backlog(&ours);
    }

    /// Begins what was assigned where Postgres says.
    pub async fn start_held(&self) -> Result<(), DatabaseError> {
        let consumption = self.database.consumption(&self.topic).await?;
        let mut ours = self.partitions();
        let held: Vec<i32> = ours
            .windows
            .iter()
            .filter_map(|(&partition, window)| window.is_held().then_some(partition))
            .collect();
        for partition in held {
            self.start(&mut ours, partition, consumption.next_of(partition), consumption.life);
        }
        Ok(())
    }

    fn start(&self, ours: &mut Partitions, partition: i32, stored: i64, life: Life) {
        let generation = ours.next_generation();
        if let Some(window) = ours.windows.get_mut(&partition) {
            window.start(stored, life, generation);
            self.consumer.start(partition, stored);
        }
    }

    /// The consumer has moved to `offset`.
    pub fn started(&self, partition: i32, offset: i64) {
        let mut ours = self.partitions();
        if let Some(window) = ours.windows.get_mut(&partition)
            && window.started(offset)
        {
            self.consumer.resume(partition);
        }
    }

    /// Takes a record into its window; `None` if it is of before a seek.
    pub fn receive(&self, partition: i32, offset: i64, claims: usize) -> Option<Place> {
        let mut ours = self.partitions();
        let window = ours.windows.get_mut(&partition)?;
        let Receipt::Accepted { pause } = window.receive(offset, claims) else {
            return None;
        };
        if pause {
            self.consumer.pause(partition);
        }
        let generation = window.generation();
        self.show_backlog(&ours);
        Some(Place {
            partition,
            offset,
            generation,
        })
    }

    /// Whether what was read there is still ours to finish.
    pub fn is_current(&self, place: Place) -> bool {
        self.partitions().current(place.partition, place.generation).is_some()
    }

    /// The advances that a transaction may carry that writes what was read at `places`.
    pub fn begin(&self, places: &[Place]) -> Carried {
        let mut sorted = places.to_vec();
        sorted.sort_unstable();
        let mut ours = self.partitions();
        let mut carried = Carried::nothing();
        // In the order of partitions: two workers that believe in the same partitions then cannot deadlock.
        for of_partition in sorted.chunk_by(|a, b| a.partition == b.partition) {
            let Some(window) = ours.windows.get_mut(&of_partition[0].partition) else {
                continue;
            };
            let generation = window.generation();
            let offsets: Vec<i64> = of_partition
                .iter()
                .filter(|place| place.generation == generation)
                .map(|place| place.offset)
                .collect();
            if let Some(advance) = window.begin_advance(&offsets) {
                carried.add(advance, window);
            }
        }
        carried
    }

    /// The transaction has committed: its advances hold and `places` are finished. `decided`: the batches of the places, in
    /// their order, where they have one.
    pub fn committed(&self, places: &[Place], decided: impl IntoIterator<Item = DecidedBatch>, carried: Carried) {
        let mut ours = self.partitions();
        for (advance, &generation) in carried.advances.iter().zip(&carried.generations) {
            if let Some(window) = ours.current(advance.partition, generation) {
                window.advanced();
                self.consumer.show_progress(advance.partition, window.stored());
            }
        }
        for (place, batch) in places.iter().zip(decided) {
            if let Some(window) = ours.current(place.partition, place.generation) {
                window.decided(place.offset, batch);
            }
        }
        self.finish_all(&mut ours, places);
    }

    /// What was read there is finished without a transaction.
    pub fn finished(&self, places: &[Place]) {
        self.finish_all(&mut self.partitions(), places);
    }

    fn finish_all(&self, ours: &mut Partitions, places: &[Place]) {
        for place in places {
            if let Some(window) = ours.current(place.partition, place.generation)
                && window.finish(place.offset)
            {
                self.consumer.resume(place.partition);
            }
        }
        if ours.windows.values().any(PartitionWindow::lags) {
            self.lagging.notify_one();
        }
        self.show_backlog(ours);
    }

    /// The transaction wrote nothing; `in_doubt`: or its answer was lost.
    pub fn failed(&self, carried: Carried, in_doubt: bool) {
        let mut ours = self.partitions();
        for (advance, &generation) in carried.advances.iter().zip(&carried.generations) {
            if let Some(window) = ours.current(advance.partition, generation) {
                window.advance_failed(in_doubt);
            }
        }
    }

    /// What the advances rest on is gone: their partitions are read again from where `consumed` still stands.
    pub fn put_back(&self, carried: Carried) {
        let mut ours = self.partitions();
        for (advance, &generation) in carried.advances.iter().zip(&carried.generations) {
            if ours.current(advance.partition, generation).is_some() {
                tracing::warn!(
                    topic = self.topic,
                    partition = advance.partition,
                    stored = advance.from,
                    "decided batches are gone, Postgres was put back: reading again from the stored offset"
                );
                self.start(&mut ours, advance.partition, advance.from, advance.life);
            }
        }
        self.show_backlog(&ours);
    }

    /// Whether the offset of every place that is still ours moves with this transaction, or has moved.
    pub fn is_complete(&self, places: &[Place], carried: &Carried) -> bool {
        let mut ours = self.partitions();
        places.iter().all(|place| {
            let moves = |advance: &Advance| advance.partition == place.partition && advance.to > place.offset;
            match ours.current(place.partition, place.generation) {
                Some(window) => place.offset < window.stored() || carried.advances.iter().any(moves),
                None => true,
            }
        })
    }

    /// Holds the windows against what Postgres has stored, and begins those again that somebody else has moved.
    pub async fn reconcile(&self) -> Result<(), DatabaseError> {
        let before: HashMap<i32, (u64, i64)> = self
            .partitions()
            .windows
            .iter()
            .filter_map(|(&partition, window)| Some((partition, window.at_rest()?)))
            .collect();
        if before.is_empty() {
            return Ok(());
        }
        let consumption = self.database.consumption(&self.topic).await?;
        let mut ours = self.partitions();
        for (partition, at_rest) in before {
            let stored = consumption.next_of(partition);
            let moved = ours.windows.get_mut(&partition).is_some_and(|window| {
                window.at_rest() == Some(at_rest) && window.reconcile(stored, consumption.life) == Standing::Moved
            });
            if moved {
                tracing::warn!(
                    topic = self.topic,
                    partition,
                    expected = at_rest.1,
                    stored,
                    "the stored offset was moved by somebody else: reading again from there"
                );
                self.start(&mut ours, partition, stored, consumption.life);
            }
        }
        self.show_backlog(&ours);
        Ok(())
    }

    /// Writes offsets that no transaction carried. Ends, having tried once more, when `stop` is cancelled.
    pub async fn write_offsets(&self, stop: &CancellationToken) {
        let mut backoff = Backoff::default();
        let mut looked = Instant::now();
        loop {
            let stopping = tokio::select! {
                () = self.lagging.notified() => !pause(GATHER, stop).await,
                () = tokio::time::sleep(LOOK.saturating_sub(looked.elapsed())) => false,
                () = stop.cancelled() => true,
            };
            // Also while there is always something to write: the partition of a held-up campaign is not among it.
            let look = looked.elapsed() >= LOOK;
            if look {
                looked = Instant::now();
            }
            match self.write_lagging(look).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    tracing::warn!(%error, topic = self.topic, "offsets could not be written, trying again");
                    if !stopping && backoff.pause(stop).await {
                        self.lagging.notify_one();
                    }
                }
            }
            if stopping {
                return;
            }
        }
    }

    async fn write_lagging(&self, look: bool) -> Result<(), DatabaseError> {
        if look || self.partitions().windows.values().any(PartitionWindow::in_doubt) {
            self.reconcile().await?;
        }
        let carried = self.begin_lagging();
        if carried.advances.is_empty() {
            return Ok(());
        }
        let advanced = self
            .database
            .advance(&self.topic, carried.advances(), carried.rests_on())
            .await;
        match advanced {
            Ok(()) => {
                self.committed(&[], [], carried);
                Ok(())
            }
            Err(PersistError::PutBack { .. }) => {
                self.put_back(carried);
                Ok(())
            }
            Err(PersistError::Database(error)) => {
                self.failed(carried, true);
                Err(error)
            }
            Err(_) => {
                self.failed(carried, false);
                self.reconcile().await
            }
        }
    }

    fn begin_lagging(&self) -> Carried {
        let mut ours = self.partitions();
        let mut lagging: Vec<&mut PartitionWindow> = ours.windows.values_mut().filter(|window| window.lags()).collect();
        lagging.sort_by_key(|window| window.partition());
        let mut carried = Carried::nothing();
        for window in lagging {
            if let Some(advance) = window.begin_advance(&[]) {
                carried.add(advance, window);
            }
        }
        carried
    }

    fn show_backlog(&self, ours: &Partitions) {
        let claims: usize = ours.windows.values().map(PartitionWindow::claims).sum();
        self.backlog.set(i64::try_from(claims).unwrap_or(i64::MAX));
    }

    /// The partitions of ours that could go on and wait for the client, and where.
    pub fn waiting(&self) -> Waiting {
        let ours = self.partitions();
        let awaits = ours
            .windows
            .iter()
            .filter_map(|(&partition, window)| Some((partition, window.awaits()?)));
        left_to_the_client(awaits.collect(), self.consumer.handed_over().as_ref())
    }

    /// How the consumer stands with its group.
    pub fn membership(&self) -> Membership {
        self.consumer.membership()
    }

    /// Joins the group with a new client: all partitions are assigned again. False: it is at that already.
    pub fn renew(&self) -> bool {
        self.consumer.renew()
    }

    /// Leaves the group.
    pub async fn leave(self) {
        self.consumer.leave().await;
    }
}
