//! What the operator counts. Each has a row in `docs/metrics.md`.

use std::{sync::Arc, time::Instant};

use campaign::{conservation::Drift, name::CampaignName};
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

use crate::resource::RebuildReason;

/// One label, `result`, `step`, `reason` or `deployment`.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $field:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $name {
            /// See the metric.
            pub $field: &'static str,
        }
    };
}
label!(
    /// The step that failed.
    StepLabel, step
);
label!(
    /// Why a state was rebuilt.
    ReasonLabel, reason
);
label!(
    /// Which Deployment.
    DeploymentLabel, deployment
);

/// A campaign whose slots do not add up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DriftLabel {
    /// Of the campaign.
    pub namespace: String,
    /// Of the campaign.
    pub name: String,
    /// How the equation is broken.
    pub kind: &'static str,
}

/// The kinds of [`DriftLabel`].
const DRIFTS: [&str; 4] = ["oversold", "leaked", "unaccounted", "unsettled"];
/// What can fail.
const STEPS: [&str; 5] = ["load", "apply", "update_status", "watch", "scale"];

/// The operator's counters; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Counter,
    reconcile_seconds: Histogram,
    errors: Family<StepLabel, Counter>,
    rebuilds: Family<ReasonLabel, Counter>,
    drift: Family<DriftLabel, Gauge>,
    leader: Gauge,
    replicas: Family<DeploymentLabel, Gauge>,
    scalings: Family<DeploymentLabel, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            reconciles: Counter::default(),
            reconcile_seconds: Histogram::new(exponential_buckets(0.005, 2.5, 10)),
            errors: Family::default(),
            rebuilds: Family::default(),
            drift: Family::default(),
            leader: Gauge::default(),
            replicas: Family::default(),
            scalings: Family::default(),
        };
        // An alarm on a counter that does not exist yet never fires.
        for step in STEPS {
            drop(metrics.errors.get_or_create(&StepLabel { step }));
        }
        for reason in RebuildReason::ALL {
            drop(metrics.rebuilds.get_or_create(&ReasonLabel {
                reason: reason.as_str(),
            }));
        }
        let mut registry = Registry::with_prefix("coupon_operator");
        let r = &mut registry;
        r.register("reconciles", "Reconciles that ended", metrics.reconciles.clone());
        r.register(
            "reconcile_seconds",
            "Duration of one reconcile",
            metrics.reconcile_seconds.clone(),
        );
        r.register(
            "errors",
            "Steps that failed and are tried again",
            metrics.errors.clone(),
        );
        r.register(
            "rebuilds",
            "Rebuilds of a state that were seen",
            metrics.rebuilds.clone(),
        );
        r.register(
            "drift",
            "Slots that do not add up, again and again",
            metrics.drift.clone(),
        );
        r.register("leader", "Whether this replica leads", metrics.leader.clone());
        r.register(
            "replicas_wanted",
            "Pods that all campaigns together want",
            metrics.replicas.clone(),
        );
        r.register(
            "scalings",
            "Changes of a Deployment's replicas",
            metrics.scalings.clone(),
        );
        metrics.registry = Arc::new(registry);
        metrics
    }

    /// The text of `/metrics`.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Counts and times one reconcile, also one that is cut short.
    pub fn reconcile(&self) -> ReconcileMeasure {
        ReconcileMeasure {
            metrics: self.clone(),
            began: Instant::now(),
        }
    }

    /// A step failed.
    pub fn error(&self, step: &'static str) {
        self.errors.get_or_create(&StepLabel { step }).inc();
    }

    /// A rebuild was seen.
    pub fn rebuilt(&self, reason: RebuildReason) {
        self.rebuilds
            .get_or_create(&ReasonLabel {
                reason: reason.as_str(),
            })
            .inc();
    }

    /// A campaign's slots do not add up.
    pub fn drifts(&self, campaign: &CampaignName, drifts: &[Drift]) {
        self.forget_drift(campaign);
        for drift in drifts {
            let (kind, by) = match drift {
                Drift::Oversold { by } => ("oversold", *by),
                Drift::Leaked { by } => ("leaked", *by),
                Drift::Unaccounted { by } => ("unaccounted", *by),
                Drift::Unsettled { claims } => ("unsettled", *claims),
            };
            self.drift.get_or_create(&drift_label(campaign, kind)).set(by);
        }
    }

    /// A campaign's slots add up, or it is gone.
    pub fn forget_drift(&self, campaign: &CampaignName) {
        for kind in DRIFTS {
            self.drift.remove(&drift_label(campaign, kind));
        }
    }

    /// Whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// What a Deployment should have, and whether it was changed for that.
    pub fn scaled(&self, deployment: &'static str, wanted: i32, changed: bool) {
        self.replicas
            .get_or_create(&DeploymentLabel { deployment })
            .set(wanted.into());
        if changed {
            self.scalings.get_or_create(&DeploymentLabel { deployment }).inc();
        }
    }
}

fn drift_label(campaign: &CampaignName, kind: &'static str) -> DriftLabel {
    DriftLabel {
        namespace: campaign.namespace().to_owned(),
        name: campaign.name().to_owned(),
        kind,
    }
}

/// One reconcile under way.
pub struct ReconcileMeasure {
    metrics: Metrics,
    began: Instant,
}

impl ReconcileMeasure {
    /// It ended; with an error in this step, if any.
    pub fn ended(self, failed: Option<&'static str>) {
        if let Some(step) = failed {
            self.metrics.error(step);
        }
    }
}

impl Drop for ReconcileMeasure {
    fn drop(&mut self) {
        self.metrics.reconciles.inc();
        self.metrics
            .reconcile_seconds
            .observe(self.began.elapsed().as_secs_f64());
    }
}
