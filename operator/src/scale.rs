//! Scales the intake and the worker to what all campaigns together want. One task, so that two reconciles never pull at
//! the same Deployment. It patches the scale subresource and nothing else.

use std::time::{Duration, Instant};

use campaign::name::CampaignName;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use kube_runtime::reflector::Store;

use crate::{
    board::Board,
    demand::{Bounds, CampaignDemand, Damper, Pods, demand},
    metrics::Metrics,
    reconcile::{Object, validate},
    settings::ClusterSettings,
    status::FIELD_MANAGER,
};

/// The demand changes with the time, too.
const INTERVAL: Duration = Duration::from_secs(2);

/// Why a Deployment could not be scaled; the next round tries again.
#[derive(Debug, thiserror::Error)]
#[error("deployment {deployment} cannot be {what}: {source}")]
pub struct ScaleError {
    deployment: String,
    what: &'static str,
    source: kube::Error,
}

/// One of the two Deployments.
struct Target {
    kind: &'static str,
    name: Option<String>,
    bounds: Bounds,
    damper: Damper,
}

/// Scales.
pub struct Scaler {
    deployments: Api<Deployment>,
    board: Board,
    metrics: Metrics,
    intake: Target,
    worker: Target,
}

impl Scaler {
    /// The Deployments of `settings` in `namespace`.
    pub fn new(client: Client, namespace: &str, settings: &ClusterSettings, board: Board, metrics: Metrics) -> Self {
        let target = |kind, name: &Option<String>, bounds| Target {
            kind,
            name: name.clone().filter(|name| !name.is_empty()),
            bounds,
            damper: Damper::new(settings.scale_down_after),
        };
        Self {
            deployments: Api::namespaced(client, namespace),
            board,
            metrics,
            intake: target("intake", &settings.intake_deployment, settings.intake_bounds()),
            worker: target("worker", &settings.worker_deployment, settings.worker_bounds()),
        }
    }

    /// Scales until it is dropped.
    pub async fn run(mut self, stores: Vec<Store<Object>>) {
        for store in &stores {
            if store.wait_until_ready().await.is_err() {
                tracing::error!("a watch ended before it had seen its campaigns: nothing is scaled");
                return;
            }
        }
        loop {
            let names = names(&stores);
            if let Some(campaigns) = self.board.complete(&names)
                && let Err(error) = self.round(&campaigns, Timestamp::now()).await
            {
                self.metrics.error("scale");
                tracing::warn!(%error, "replicas stay as they are");
            }
            // A change is followed at once, but never in a tight loop.
            tokio::time::sleep(INTERVAL / 4).await;
            let _ = tokio::time::timeout(INTERVAL, self.board.changed()).await;
        }
    }

    /// Scales once.
    pub async fn round(&mut self, campaigns: &[CampaignDemand], now: Timestamp) -> Result<(), ScaleError> {
        let current = Pods {
            intake: self.current(&self.intake).await?,
            worker: self.current(&self.worker).await?,
        };
        let wanted = demand(campaigns, now, current, self.intake.bounds, self.worker.bounds);
        let at = Instant::now();
        let intake = self.intake.damper.damp(current.intake, wanted.intake, at);
        let worker = self.worker.damper.damp(current.worker, wanted.worker, at);
        self.set(&self.intake, current.intake, intake).await?;
        self.set(&self.worker, current.worker, worker).await
    }

    async fn current(&self, target: &Target) -> Result<i32, ScaleError> {
        let Some(name) = &target.name else { return Ok(0) };
        let scale = self.deployments.get_scale(name).await.map_err(|source| ScaleError {
            deployment: name.clone(),
            what: "read",
            source,
        })?;
        Ok(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0))
    }

    async fn set(&self, target: &Target, current: i32, wanted: i32) -> Result<(), ScaleError> {
        let Some(name) = &target.name else { return Ok(()) };
        if current != wanted {
            let patch = serde_json::json!({"spec": {"replicas": wanted}});
            let params = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            self.deployments
                .patch_scale(name, &params, &Patch::Merge(&patch))
                .await
                .map_err(|source| ScaleError {
                    deployment: name.clone(),
                    what: "scaled",
                    source,
                })?;
            tracing::info!(deployment = name, from = current, to = wanted, "scaled");
        }
        self.metrics.scaled(target.kind, wanted, current != wanted);
        Ok(())
    }
}

fn names(stores: &[Store<Object>]) -> Vec<CampaignName> {
    stores
        .iter()
        .flat_map(|store| store.state())
        .filter_map(|object| validate::name(object.meta()).ok())
        .collect()
}
