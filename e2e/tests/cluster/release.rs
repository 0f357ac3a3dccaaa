//! The release is upgraded, rolled back, tested, uninstalled and installed again.

use std::time::Duration;

use e2e::{
    burst::{Burst, NAMESPACE, outcome},
    campaign::{Campaign, SOON},
    chart::{RELEASE, helm},
    door::Door,
    kubectl::{Namespace, get, kubectl},
};
use serde_json::json;

use crate::{REBUILT, SETTLED, ready_pods_until, replicas, replicas_until};

async fn rolled_out() {
    for component in ["operator", "intake", "worker"] {
        let name = format!("deployment/{RELEASE}-{component}");
        kubectl(&["-n", NAMESPACE, "rollout", "status", &name, "--timeout=300s"])
            .await
            .expect("rolled out");
    }
}

/// The values of the release as it is, and some over them.
async fn upgrade(sets: &[&str]) {
    let mut arguments = vec!["upgrade", RELEASE, "charts/coupon", "-n", NAMESPACE, "--reuse-values"];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    helm(&arguments).await.expect("upgraded");
}

#[tokio::test]
async fn an_upgrade_and_a_rollback_in_the_middle_of_a_burst_lose_nothing() {
    let namespace = Namespace::create("upgraded").await.unwrap();
    let spec = json!({"quantity": 2000, "intake": {"replicas": 2}, "worker": {"minReplicas": 2}});
    let sale = Campaign::start(&namespace.name, "sale", spec).await.unwrap();
    ready_pods_until("intake", 2).await;
    replicas_until(SOON, "worker", |count| count == 2).await;

    let burst = Burst::start(&sale, 4000, 30, true).await.unwrap();
    sale.until(SOON, "has sold some", |status| status["taken"].as_i64() > Some(50))
        .await;
    upgrade(&[
        "intake.podAnnotations.round=two",
        "worker.podAnnotations.round=two",
        "operator.podAnnotations.round=two",
    ])
    .await;
    assert_eq!(
        (replicas("intake").await.unwrap(), replicas("worker").await.unwrap()),
        (2, 2),
        "an upgrade leaves the replicas alone"
    );
    rolled_out().await;
    helm(&["rollback", RELEASE, "-n", NAMESPACE]).await.unwrap();
    assert_eq!(
        replicas("intake").await.unwrap(),
        2,
        "a rollback leaves the replicas alone"
    );
    rolled_out().await;

    let said = burst.finish().await.unwrap();
    assert_eq!(outcome(&said, "SUCCESS"), 2000, "{said}");
    sale.settled(SETTLED, 2000).await;
}

#[tokio::test]
async fn helm_test_passes() {
    let said = helm(&["test", RELEASE, "-n", NAMESPACE, "--timeout", "120s"])
        .await
        .unwrap();
    assert!(said.contains("Succeeded"), "{said}");
}

#[tokio::test]
async fn an_uninstalled_release_leaves_definitions_and_data_to_the_next_one() {
    let namespace = Namespace::create("reinstalled").await.unwrap();
    let door = Door::find().await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 10}))
        .await
        .unwrap();
    let other = Namespace::create("abandoned").await.unwrap();
    Campaign::start(&other.name, "sale", json!({"quantity": 10}))
        .await
        .unwrap();
    door.claim_until(SOON, &sale, "ada", "SUCCESS").await;
    sale.until(SOON, "has issued it", |status| status["issued"] == 1).await;

    let values = helm(&["get", "values", RELEASE, "-n", NAMESPACE, "-o", "json"])
        .await
        .unwrap();
    let file = std::env::temp_dir().join(format!("coupon-e2e-values-{}.json", std::process::id()));
    std::fs::write(&file, values).unwrap();
    helm(&["uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "180s"])
        .await
        .unwrap();
    let definition = "couponcampaigns.coupon-operator.dev";
    assert!(get(NAMESPACE, "crd", definition).await.unwrap().is_some());
    assert!(sale.read().await.unwrap().is_some());
    assert!(get(NAMESPACE, "deployment", "coupon-intake").await.unwrap().is_none());

    // Nobody is there who could drain its campaign.
    kubectl(&["delete", "namespace", &other.name, "--timeout=60s"])
        .await
        .unwrap();

    let path = file.to_string_lossy().into_owned();
    helm(&["install", RELEASE, "charts/coupon", "-n", NAMESPACE, "--values", &path])
        .await
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    rolled_out().await;
    // What the status says was said before, too: the new operator does something.
    sale.change(json!({"quantity": 11})).await.unwrap();
    sale.until(REBUILT, "goes on", |status| {
        status["issued"] == 1 && status["available"] == 10
    })
    .await;
    let door_again = Door::find().await.unwrap();
    door_again
        .claim_until(Duration::from_secs(60), &sale, "ada", "DUPLICATE")
        .await;
    door_again.claim_until(SOON, &sale, "bob", "SUCCESS").await;
}
