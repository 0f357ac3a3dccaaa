//! What an intake counts. Every series is resolved once, so that counting is one atomic addition.
//! `docs/metrics.md` explains each.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::door::decision::AnswerKind;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// How one record's publish ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishResult {
    /// Acknowledged in time.
    Acknowledged,
    /// Acknowledged, but after the publish timeout.
    Late,
    /// Surely not stored.
    NotStored,
    /// May be stored.
    Unknown,
    /// Not sent: the publish timeout had passed before.
    NotSent,
    /// Acknowledged in a topic that was made anew or cut back: nobody may ever read it.
    Unreadable,
}

impl PublishResult {
    const ALL: [Self; 6] = [
        Self::Acknowledged,
        Self::Late,
        Self::NotStored,
        Self::Unknown,
        Self::NotSent,
        Self::Unreadable,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Late => "late",
            Self::NotStored => "not_stored",
            Self::Unknown => "unknown",
            Self::NotSent => "not_sent",
            Self::Unreadable => "unreadable",
        }
    }
}

/// How a rebuild that this door started ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildResult {
    /// The state is new.
    Done,
    /// Somebody else has done it or is at it, or the campaign is gone.
    NotNeeded,
    /// It stopped; the next claim starts another.
    Failed,
    /// The door was shut down meanwhile; another one takes over.
    Stopped,
}

impl RebuildResult {
    const ALL: [Self; 4] = [Self::Done, Self::NotNeeded, Self::Failed, Self::Stopped];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotNeeded => "not_needed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// The numbers of one intake.
pub struct Metrics {
    registry: Registry,
    claims: [Counter; AnswerKind::ALL.len()],
    publishes: [Counter; PublishResult::ALL.len()],
    rebuilds: [Counter; RebuildResult::ALL.len()],
    /// Rebuilds that this door started.
    pub rebuilds_started: Counter,
    /// Claims of one reserve call.
    pub reserve_size: Histogram,
    /// Seconds that one reserve call took.
    pub reserve_seconds: Histogram,
    /// Seconds from the reserve call to the acknowledgement.
    pub acknowledge_seconds: Histogram,
    /// Claims that were given back because they surely are not stored.
    pub released: Counter,
    in_flight: Gauge,
    waiting: Gauge,
    kafka_open: Gauge,
    topic_shortened: Gauge,
    producer_renewals: Counter,
}

/// Numbers that are read when they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// Claims between their acceptance into the queue and their answer.
    pub in_flight: usize,
    /// Those of them that wait for a reserve call.
    pub waiting: usize,
    /// Whether claims are reserved at all; see the Kafka gate.
    pub kafka_open: bool,
    /// Whether the topic of claims was found to be made anew or cut back.
    pub topic_shortened: bool,
    /// How often the Kafka producer was made anew because it was broken or stuck.
    pub producer_renewals: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("coupon_intake");
        let claims = counters(
            &mut registry,
            "claims",
            "Claims answered, by result",
            AnswerKind::ALL.map(AnswerKind::as_str),
        );
        let publishes = counters(
            &mut registry,
            "publishes",
            "Records handed to Kafka, by how it ended",
            PublishResult::ALL.map(PublishResult::as_str),
        );
        let rebuilds = counters(
            &mut registry,
            "rebuilds",
            "Rebuilds that this door started, by how they ended",
            RebuildResult::ALL.map(RebuildResult::as_str),
        );
        let rebuilds_started = Counter::default();
        registry.register(
            "rebuilds_started",
            "Rebuilds that this door started",
            rebuilds_started.clone(),
        );
        let released = Counter::default();
        registry.register(
            "released",
            "Claims given back because their record surely is not stored",
            released.clone(),
        );
        let reserve_size = Histogram::new(exponential_buckets(1.0, 2.0, 9));
        registry.register("reserve_claims", "Claims of one reserve call", reserve_size.clone());
        let reserve_seconds = Histogram::new(exponential_buckets(0.000_25, 2.0, 14));
        registry.register(
            "reserve_seconds",
            "Seconds that one reserve call took",
            reserve_seconds.clone(),
        );
        let acknowledge_seconds = Histogram::new(exponential_buckets(0.001, 2.0, 14));
        registry.register(
            "acknowledge_seconds",
            "Seconds from the reserve call to the acknowledgement of its record",
            acknowledge_seconds.clone(),
        );
        let in_flight = Gauge::default();
        registry.register("in_flight", "Claims that wait or are on their way", in_flight.clone());
        let waiting = Gauge::default();
        registry.register("waiting", "Claims that wait for a reserve call", waiting.clone());
        let kafka_open = Gauge::default();
        registry.register(
            "kafka_open",
            "1 while claims are reserved, 0 while the door is shut because Kafka does not take records",
            kafka_open.clone(),
        );
        let topic_shortened = Gauge::default();
        registry.register(
            "topic_shortened",
            "1 while the door is shut because the topic of claims was made anew or cut back",
            topic_shortened.clone(),
        );
        let producer_renewals = Counter::default();
        registry.register(
            "producer_renewals",
            "How often the Kafka producer was made anew because it was broken, knew no broker or nothing was acknowledged",
            producer_renewals.clone(),
        );
        Self {
            registry,
            claims,
            publishes,
            rebuilds,
            rebuilds_started,
            reserve_size,
            reserve_seconds,
            acknowledge_seconds,
            released,
            in_flight,
            waiting,
            kafka_open,
            topic_shortened,
            producer_renewals,
        }
    }

    /// Counts an answered claim.
    pub fn answered(&self, kind: AnswerKind) {
        self.claims[kind as usize].inc();
    }

    /// Counts a record.
    pub fn published(&self, result: PublishResult) {
        self.publishes[result as usize].inc();
    }

    /// Counts a rebuild's end.
    pub fn rebuilt(&self, result: RebuildResult) {
        self.rebuilds[result as usize].inc();
    }

    /// The text that Prometheus reads.
    pub fn encode(&self, levels: Levels) -> Result<String, std::fmt::Error> {
        self.in_flight.set(levels.in_flight.try_into().unwrap_or(i64::MAX));
        self.waiting.set(levels.waiting.try_into().unwrap_or(i64::MAX));
        self.kafka_open.set(levels.kafka_open.into());
        self.topic_shortened.set(levels.topic_shortened.into());
        self.producer_renewals
            .inner()
            .store(levels.producer_renewals, Ordering::Relaxed);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn counters<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    results: [&'static str; N],
) -> [Counter; N] {
    let family = Family::<ResultLabel, Counter<u64, AtomicU64>>::default();
    registry.register(name, help, family.clone());
    results.map(|result| family.get_or_create_owned(&ResultLabel { result }))
}
