//! What the worker counts. Each has a row in `docs/metrics.md`.

use campaign::postgres::persist::Reason;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// Why a stored claim got no row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// As in table `rejection`.
    pub reason: &'static str,
}

/// What kind of dead letter, retry or sweep.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    /// See the metric.
    pub kind: &'static str,
}

/// What is tried again.
const RETRIES: [&str; 13] = [
    "postgres",
    "redis",
    "lock",
    "fenced",
    "moved",
    "put_back",
    "data",
    "dead_letter",
    "settle",
    "relay",
    "projection",
    "watch_claims",
    "watch_events",
];

/// The worker's counters; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: std::sync::Arc<Registry>,
    /// Claims of records that were decided.
    pub claims_persisted: Counter,
    /// Coupons that came to be.
    pub coupons_issued: Counter,
    /// Stored claims without a row.
    pub success_revoked: Family<ReasonLabel, Counter>,
    /// Records that had been decided before.
    pub already_decided: Counter,
    /// Claims of one transaction.
    pub batch_claims: Histogram,
    /// Seconds of one transaction.
    pub persist_seconds: Histogram,
    /// Seconds until a campaign's lock was had.
    pub lock_wait_seconds: Histogram,
    /// Seconds until permits were had.
    pub limit_wait_seconds: Histogram,
    /// Claims read and not finished.
    pub backlog_claims: Gauge,
    /// Campaigns that wait after too many dead letters.
    pub campaigns_waiting: Gauge,
    /// Tries that failed and are repeated.
    pub retries: Family<KindLabel, Counter>,
    /// Dead letters published.
    pub dead_letters: Family<KindLabel, Counter>,
    /// Batches that the sweeper brought to an end.
    pub swept_batches: Family<KindLabel, Counter>,
    /// Sweeps that ended early because something could not be read.
    pub sweeps_undecided: Counter,
    /// 1 while the topic of claims is shorter than what was consumed of it.
    pub topic_shortened: Gauge,
    /// Consumers that joined anew because they delivered nothing, or stayed out of their group.
    pub consumers_renewed: Counter,
    /// How often the lifecycle topic was found to be another one and was read from its beginning.
    pub projection_restarts: Counter,
    /// Events published.
    pub events_relayed: Counter,
    /// Events that waited in the outbox when the relay last looked.
    pub outbox_rows: Gauge,
    /// Events that were new to the projection.
    pub events_projected: Counter,
    /// Records of the lifecycle topic that are no events.
    pub events_skipped: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.5, 12));
        let mut metrics = Self {
            registry: std::sync::Arc::default(),
            claims_persisted: Counter::default(),
            coupons_issued: Counter::default(),
            success_revoked: Family::default(),
            already_decided: Counter::default(),
            batch_claims: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            persist_seconds: seconds(),
            lock_wait_seconds: seconds(),
            limit_wait_seconds: seconds(),
            backlog_claims: Gauge::default(),
            campaigns_waiting: Gauge::default(),
            retries: Family::default(),
            dead_letters: Family::default(),
            swept_batches: Family::default(),
            sweeps_undecided: Counter::default(),
            topic_shortened: Gauge::default(),
            consumers_renewed: Counter::default(),
            projection_restarts: Counter::default(),
            events_relayed: Counter::default(),
            outbox_rows: Gauge::default(),
            events_projected: Counter::default(),
            events_skipped: Counter::default(),
        };
        // An alarm on a counter that does not exist yet never fires.
        for reason in [
            Reason::StaleEpoch,
            Reason::AlreadyIssued,
            Reason::OutOfStock,
            Reason::CampaignGone,
            Reason::DeadLettered,
        ] {
            let _ = metrics.revoked(reason);
        }
        for (family, kinds) in [
            (&metrics.retries, RETRIES.as_slice()),
            (&metrics.dead_letters, &["claim", "bytes"]),
            (&metrics.swept_batches, &["abandoned", "as_stored"]),
        ] {
            for kind in kinds {
                drop(family.get_or_create(&KindLabel { kind }));
            }
        }
        let mut registry = Registry::with_prefix("coupon_worker");
        let r = &mut registry;
        r.register(
            "claims_persisted",
            "Claims of records that were decided",
            metrics.claims_persisted.clone(),
        );
        r.register(
            "coupons_issued",
            "Coupons that came to be",
            metrics.coupons_issued.clone(),
        );
        r.register(
            "success_revoked",
            "Stored claims that got no row",
            metrics.success_revoked.clone(),
        );
        r.register(
            "already_decided",
            "Records that had been decided before",
            metrics.already_decided.clone(),
        );
        r.register(
            "batch_claims",
            "Claims of one transaction",
            metrics.batch_claims.clone(),
        );
        r.register(
            "persist_seconds",
            "Duration of one transaction",
            metrics.persist_seconds.clone(),
        );
        r.register(
            "lock_wait_seconds",
            "Wait for a campaign's lock",
            metrics.lock_wait_seconds.clone(),
        );
        r.register(
            "limit_wait_seconds",
            "Wait for permits",
            metrics.limit_wait_seconds.clone(),
        );
        r.register(
            "backlog_claims",
            "Claims read and not finished",
            metrics.backlog_claims.clone(),
        );
        r.register(
            "campaigns_waiting",
            "Campaigns that wait after too many dead letters",
            metrics.campaigns_waiting.clone(),
        );
        r.register("retries", "Tries that failed and are repeated", metrics.retries.clone());
        r.register("dead_letters", "Dead letters published", metrics.dead_letters.clone());
        r.register(
            "swept_batches",
            "Batches that the sweeper brought to an end",
            metrics.swept_batches.clone(),
        );
        r.register(
            "sweeps_undecided",
            "Sweeps that ended early because something could not be read",
            metrics.sweeps_undecided.clone(),
        );
        r.register(
            "topic_shortened",
            "1 while the topic of claims counts as made anew or cut back",
            metrics.topic_shortened.clone(),
        );
        r.register(
            "consumers_renewed",
            "Consumers that joined anew because they stayed out of their group or partitions delivered nothing",
            metrics.consumers_renewed.clone(),
        );
        r.register(
            "projection_restarts",
            "How often the lifecycle topic was read from its beginning",
            metrics.projection_restarts.clone(),
        );
        r.register("events_relayed", "Events published", metrics.events_relayed.clone());
        r.register(
            "outbox_rows",
            "Events that waited in the outbox",
            metrics.outbox_rows.clone(),
        );
        r.register(
            "events_projected",
            "Events that were new to the projection",
            metrics.events_projected.clone(),
        );
        r.register(
            "events_skipped",
            "Records that are no events",
            metrics.events_skipped.clone(),
        );
        metrics.registry = std::sync::Arc::new(registry);
        metrics
    }

    /// The counter of one reason.
    pub fn revoked(&self, reason: Reason) -> Counter {
        self.success_revoked
            .get_or_create(&ReasonLabel {
                reason: reason.as_str(),
            })
            .clone()
    }

    /// Counts a try that is repeated: of Postgres, Redis, the lock, Kafka.
    pub fn retry(&self, kind: &'static str) {
        self.retries.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts a dead letter: `claim` or `bytes`.
    pub fn dead_letter(&self, kind: &'static str) {
        self.dead_letters.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts batches that the sweeper brought to an end: `abandoned` or `as_stored`.
    pub fn swept(&self, kind: &'static str, batches: usize) {
        self.swept_batches
            .get_or_create(&KindLabel { kind })
            .inc_by(batches as u64);
    }

    /// In the text format of Prometheus.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
