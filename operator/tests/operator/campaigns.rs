//! Campaigns from their object to the servers and back into the status, on real Redis, Kafka and Postgres.

use std::{sync::Arc, time::Duration};

use campaign::{
    identity::{BatchId, Instance, RequestId, Reservation, UserId},
    name::CampaignName,
    redis::state::{ReserveAnswer, StateAnswer, StateNumbers, StateStatus},
};
use clap::Parser;
use kube::core::DeserializeGuard;
use kube_runtime::controller::Action;
use operator::{
    board::Board,
    events::Events,
    metrics::Metrics,
    reconcile::{Context, ReconcileError, reconcile},
    resource::{FINALIZER, FORCE_DELETE_ANNOTATION, REBUILD_ANNOTATION, RebuildReason, State},
    servers::{Connected, Servers},
    settings::{ClusterSettings, OperatorSettings},
};
use serde_json::json;
use testkit::{eventually::eventually, installation::TestInstallation};

use crate::api_server::{ApiServer, CAMPAIGNS};

const LIMIT: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    cluster: ClusterSettings,
}

pub fn cluster_settings(arguments: &[&str]) -> ClusterSettings {
    Defaults::parse_from([&["operator", "--operator-listen", "127.0.0.1:0"], arguments].concat()).cluster
}

pub fn settings(installation: &TestInstallation, arguments: &[&str]) -> OperatorSettings {
    OperatorSettings {
        installation: installation.installation.clone(),
        redis: installation.redis.clone(),
        kafka: installation.kafka.clone(),
        postgres: installation.postgres.clone(),
        cluster: cluster_settings(arguments),
    }
}

/// An API server with an operator whose reconciles the test runs.
struct Cluster {
    api: ApiServer,
    context: Arc<Context>,
    servers: Servers,
}

impl Cluster {
    async fn start() -> Self {
        let installation = TestInstallation::start().await.unwrap();
        let servers = Servers::connect(&settings(&installation, &[])).await.unwrap();
        Self::on(servers.clone(), Connected::to(servers))
    }

    fn on(servers: Servers, connected: Connected) -> Self {
        Self::with(ApiServer::new(), servers, connected)
    }

    fn with(api: ApiServer, servers: Servers, connected: Connected) -> Self {
        let client = api.client();
        let events = Events::new(client.clone(), "operator-0");
        let context = Context::new(client, connected, events, Metrics::new(), Board::default());
        Self {
            api,
            context: Arc::new(context),
            servers,
        }
    }

    /// The same cluster, with an operator that cannot connect.
    fn without_servers(&self) -> Self {
        Self::with(
            self.api.clone(),
            self.servers.clone(),
            Connected::to_nothing("connection refused"),
        )
    }

    async fn reconcile(&self) -> Result<Action, ReconcileError> {
        let watched = json!({
            "apiVersion": "coupon-operator.dev/v1alpha1", "kind": "CouponCampaign",
            "metadata": {"name": "sale", "namespace": "default"}, "spec": {"quantity": 0},
        });
        let watched: DeserializeGuard<_> = serde_json::from_value(watched).unwrap();
        reconcile(Arc::new(watched), self.context.clone()).await
    }

    async fn apply(&self, spec: serde_json::Value) {
        self.annotate(spec, json!({})).await;
    }

    async fn annotate(&self, spec: serde_json::Value, annotations: serde_json::Value) {
        self.api.apply_campaign("sale", spec, annotations);
        self.reconcile().await.unwrap();
    }

    async fn numbers(&self) -> StateNumbers {
        match self.servers.aligner.state.state(&name()).await.unwrap() {
            StateAnswer::Present(numbers) => numbers,
            other => panic!("{other:?}"),
        }
    }

    /// Reserves slots that nobody publishes.
    async fn claim(&self, users: usize) -> Batch {
        let claims: Vec<(UserId, RequestId)> = (0..users)
            .map(|user| (format!("user-{user}").parse().unwrap(), RequestId::fresh()))
            .collect();
        let id = Instance::random().batch(0);
        let answer = self.servers.aligner.state.reserve(&name(), &id, &claims).await.unwrap();
        assert!(matches!(answer, ReserveAnswer::Judged(_)), "{answer:?}");
        let claims = claims
            .into_iter()
            .zip(0..)
            .map(|((user, _), i)| (user, id.reservation(i)))
            .collect();
        Batch { id, claims }
    }

    /// What the sweeper does about them.
    async fn abandon(&self, batch: Batch) {
        let state = &self.servers.aligner.state;
        state.release(&name(), &batch.claims).await.unwrap();
        state.settle(&name(), &[batch.id]).await.unwrap();
    }

    fn condition(&self, kind: &str) -> (String, String) {
        self.api
            .condition("sale", kind)
            .unwrap_or_else(|| panic!("no condition {kind}"))
    }
}

/// Claims that are reserved and not published.
struct Batch {
    id: BatchId,
    claims: Vec<(UserId, Reservation)>,
}

fn name() -> CampaignName {
    CampaignName::new("default", "sale").unwrap()
}

fn is(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn an_applied_campaign_opens_and_says_so() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 100})).await;

    let campaign = cluster.api.campaign("sale").unwrap();
    assert_eq!(campaign.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
    let status = campaign.status.unwrap();
    assert_eq!(
        (status.quantity, status.available, status.taken, status.pending),
        (Some(100), Some(100), Some(0), Some(0))
    );
    assert_eq!(
        (status.issued, status.parked, status.state),
        (Some(0), Some(0), Some(State::Open))
    );
    assert_eq!(status.observed_generation, campaign.metadata.generation);
    let rebuilt = status.last_rebuild.unwrap();
    assert_eq!((rebuilt.reason, rebuilt.users), (RebuildReason::Created, Some(0)));
    for (kind, expected) in [
        ("Ready", is("True", "AsWanted")),
        ("Progressing", is("False", "UpToDate")),
        ("Degraded", is("False", "Healthy")),
        ("StateReady", is("True", "Serving")),
        ("Open", is("True", "InWindow")),
        ("Exhausted", is("False", "Available")),
        ("Conserved", is("True", "Balanced")),
    ] {
        assert_eq!(cluster.condition(kind), expected, "{kind}");
    }
    let events = cluster.api.events();
    for reason in ["Created", "Rebuilt", "InWindow"] {
        assert!(events.contains(&reason.to_owned()), "{events:?}");
    }
    cluster.claim(3).await;
    cluster.reconcile().await.unwrap();
    let status = cluster.api.campaign_status("sale");
    assert_eq!(
        (status.available, status.taken, status.pending),
        (Some(97), Some(3), Some(3))
    );
}

#[tokio::test]
async fn a_reconcile_without_news_writes_nothing() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 100})).await;
    let writes = cluster.api.writes();
    let requeue = cluster.reconcile().await.unwrap();
    assert_eq!(cluster.api.writes(), writes);
    assert_eq!(requeue, Action::requeue(Duration::from_secs(10)));
}

#[tokio::test]
async fn quantity_pause_and_window_follow_the_spec() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 10})).await;
    cluster.claim(8).await;

    cluster.apply(json!({"quantity": 20})).await;
    assert_eq!(cluster.numbers().await.quantity, 20);
    assert_eq!(cluster.api.campaign_status("sale").available, Some(12));

    cluster.apply(json!({"quantity": 5})).await;
    assert_eq!(
        (cluster.numbers().await.quantity, cluster.numbers().await.taken),
        (8, 8)
    );
    assert_eq!(cluster.condition("Degraded"), is("True", "QuantityBelowTaken"));
    assert_eq!(cluster.condition("Exhausted"), is("True", "SoldOut"));
    assert_eq!(cluster.condition("Ready"), is("True", "AsWanted"));

    cluster.apply(json!({"quantity": 20, "paused": true})).await;
    assert_eq!(cluster.numbers().await.status, StateStatus::Paused);
    assert_eq!(cluster.condition("Open"), is("False", "Paused"));
    assert_eq!(cluster.condition("Degraded"), is("False", "Healthy"));

    cluster
        .apply(json!({"quantity": 20, "opensAt": "2100-01-01T00:00:00Z", "closesAt": "2100-01-02T00:00:00Z"}))
        .await;
    assert_eq!(cluster.condition("Open"), is("False", "NotOpenYet"));
    assert_eq!(cluster.api.campaign_status("sale").state, Some(State::Waiting));
    cluster
        .apply(json!({"quantity": 20, "closesAt": "2020-01-02T00:00:00Z"}))
        .await;
    assert_eq!(cluster.condition("Open"), is("False", "Closed"));
}

#[tokio::test]
async fn a_lost_state_is_built_again_and_the_status_tells_why() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 10})).await;
    let before = cluster.api.campaign_status("sale").epoch;
    let row = cluster
        .servers
        .aligner
        .database
        .campaign(&name())
        .await
        .unwrap()
        .unwrap();
    cluster.servers.aligner.state.remove(&name(), row.id).await.unwrap();

    cluster.reconcile().await.unwrap();
    let status = cluster.api.campaign_status("sale");
    let rebuilt = status.last_rebuild.unwrap();
    assert_eq!(rebuilt.reason, RebuildReason::StateMissing);
    assert!(rebuilt.duration.is_some() && status.epoch > before, "{rebuilt:?}");
    assert_eq!(cluster.condition("StateReady"), is("True", "Serving"));
}

#[tokio::test]
async fn a_rebuild_by_an_intake_is_seen() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 10})).await;
    let rebuilder = &cluster.servers.aligner.rebuilder;
    rebuilder
        .rebuild(&name(), campaign::rebuild::Force::Always)
        .await
        .unwrap();
    cluster.reconcile().await.unwrap();
    let rebuilt = cluster.api.campaign_status("sale").last_rebuild.unwrap();
    assert_eq!((rebuilt.reason, rebuilt.users), (RebuildReason::ByAnotherProcess, None));
}

#[tokio::test]
async fn the_annotation_rebuilds_once_for_each_of_its_values() {
    let cluster = Cluster::start().await;
    let spec = json!({"quantity": 10});
    cluster.apply(spec.clone()).await;
    let epoch = || cluster.api.campaign_status("sale").epoch;
    let created = epoch();
    let status_writes = || {
        let writes = cluster.api.writes();
        writes.iter().filter(|write| write.ends_with("/status")).count()
    };
    let writes = status_writes();
    cluster
        .annotate(spec.clone(), json!({REBUILD_ANNOTATION: "after the restore"}))
        .await;
    let asked = epoch();
    assert!(asked > created);
    assert_eq!(status_writes(), writes + 2, "before the rebuild and after it");
    let status = cluster.api.campaign_status("sale");
    assert_eq!(status.last_rebuild.unwrap().reason, RebuildReason::Requested);
    assert_eq!(status.served_rebuild.as_deref(), Some("after the restore"));
    cluster.reconcile().await.unwrap();
    assert_eq!(epoch(), asked, "once");
    cluster.annotate(spec, json!({REBUILD_ANNOTATION: "again"})).await;
    assert!(epoch() > asked);
    let events = cluster.api.events();
    let rebuilt = events.iter().filter(|reason| *reason == "Rebuilt").count();
    assert_eq!(rebuilt, 3, "each with a note of its own");
}

#[tokio::test]
async fn servers_that_cannot_be_read_leave_the_numbers_and_the_demand_as_they_were() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 10, "intake": {"replicas": 3}})).await;
    cluster.claim(4).await;
    cluster.reconcile().await.unwrap();
    let before = cluster.api.campaign_status("sale");

    let blind = cluster.without_servers();
    blind.reconcile().await.unwrap();
    let status = cluster.api.campaign_status("sale");
    assert_eq!(status.state, Some(State::Unknown));
    assert_eq!(
        (status.available, status.taken, status.pending),
        (before.available, before.taken, before.pending)
    );
    assert_eq!(cluster.condition("StateReady"), is("Unknown", "NotConnected"));
    assert_eq!(
        cluster.condition("Conserved"),
        is("True", "Balanced"),
        "what was known stays"
    );
    let demand = blind.context.board.complete(&[name()]).unwrap();
    assert_eq!(demand[0].numbers, None, "unknown is not zero");

    cluster.reconcile().await.unwrap();
    assert_eq!(cluster.condition("StateReady"), is("True", "Serving"));
}

#[tokio::test]
async fn a_deleted_campaign_waits_for_its_claims_and_goes() {
    let cluster = Cluster::start().await;
    let spec = json!({"quantity": 10});
    cluster.apply(spec.clone()).await;
    let batch = cluster.claim(1).await;
    cluster.api.delete(&format!("{CAMPAIGNS}/sale"));
    cluster.reconcile().await.unwrap();
    assert_eq!(cluster.condition("Draining"), is("True", "Draining"));
    assert_eq!(cluster.api.campaign_status("sale").state, Some(State::Deleting));
    assert_eq!(cluster.numbers().await.status, StateStatus::Paused, "the door is shut");

    cluster.abandon(batch).await;
    eventually(LIMIT, "the object is gone", async || {
        cluster.reconcile().await.unwrap();
        cluster.api.campaign("sale").is_none()
    })
    .await;
    let state = cluster.servers.aligner.state.state(&name()).await.unwrap();
    assert_eq!(state, StateAnswer::NotInitialized);
    assert!(cluster.api.events().contains(&"Drained".to_owned()));

    // Applied again, the campaign goes on.
    cluster.apply(spec).await;
    assert_eq!(cluster.condition("Ready"), is("True", "AsWanted"));
}

#[tokio::test]
async fn a_deletion_goes_through_while_others_write_the_object() {
    let cluster = Cluster::start().await;
    cluster.apply(json!({"quantity": 10})).await;
    cluster.api.delete(&format!("{CAMPAIGNS}/sale"));
    let api = cluster.api.clone();
    let writer = tokio::spawn(async move {
        let campaigns: kube::Api<operator::reconcile::Object> = kube::Api::namespaced(api.client(), "default");
        let patch = kube::api::Patch::Merge(json!({"metadata": {"labels": {"written": "often"}}}));
        while campaigns
            .patch("sale", &kube::api::PatchParams::default(), &patch)
            .await
            .is_ok()
        {
            tokio::task::yield_now().await;
        }
    });
    eventually(LIMIT, "the object is gone", async || {
        let _ = cluster.reconcile().await;
        cluster.api.campaign("sale").is_none()
    })
    .await;
    writer.await.unwrap();
}

#[tokio::test]
async fn without_servers_a_deletion_waits_unless_it_is_forced() {
    let cluster = Cluster::start().await;
    let spec = json!({"quantity": 10});
    cluster.apply(spec.clone()).await;
    let blind = cluster.without_servers();
    blind.api.delete(&format!("{CAMPAIGNS}/sale"));
    blind.reconcile().await.unwrap_err();
    assert_eq!(cluster.condition("Draining"), is("True", "ServersUnreachable"));

    blind.annotate(spec, json!({FORCE_DELETE_ANNOTATION: "true"})).await;
    assert!(cluster.api.campaign("sale").is_none());
}

#[tokio::test]
async fn nobody_gets_another_coupon_than_who_came_first() {
    let cluster = Cluster::start().await;
    let spec = |prefix: &str| json!({"quantity": 10, "coupon": {"codePrefix": prefix}});
    cluster.apply(spec("FIRST")).await;
    let promised = |prefix: &str| {
        let status = cluster.api.campaign_status("sale");
        let message = &status.conditions[0].message;
        assert!(
            message.contains(prefix) && message.contains("another name"),
            "{message}"
        );
        is("False", "Invalid")
    };
    // An older CRD might let it pass.
    cluster.apply(spec("SECOND")).await;
    assert_eq!(cluster.condition("Ready"), promised("FIRST"));
    assert_eq!(cluster.numbers().await.status, StateStatus::Open, "the sale goes on");

    // Nor does a campaign come back as another one.
    cluster.api.delete(&format!("{CAMPAIGNS}/sale"));
    eventually(LIMIT, "the object is gone", async || {
        cluster.reconcile().await.unwrap();
        cluster.api.campaign("sale").is_none()
    })
    .await;
    cluster.api.apply_campaign("sale", spec("SECOND"), json!({}));
    cluster.reconcile().await.unwrap_err();
    assert_eq!(cluster.condition("Ready"), promised("FIRST"));
    assert_eq!(cluster.servers.aligner.database.campaign(&name()).await.unwrap(), None);
    cluster.apply(spec("FIRST")).await;
    assert_eq!(cluster.condition("Ready"), is("True", "AsWanted"));
}

#[tokio::test]
async fn a_spec_that_slipped_through_is_refused_in_the_status() {
    let cluster = Cluster::start().await;
    // As an older CRD might let pass.
    cluster.apply(json!({"quantity": -1})).await;
    assert_eq!(cluster.condition("Ready"), is("False", "Invalid"));
    let status = cluster.api.campaign_status("sale");
    assert_eq!(status.state, Some(State::Invalid));
    let message = &status.conditions[0].message;
    assert!(message.contains("spec.quantity"), "{message}");
    assert_eq!(cluster.servers.aligner.database.campaign(&name()).await.unwrap(), None);
}
