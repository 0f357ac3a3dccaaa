//! Time alone opens and closes a sale; the pods are there before it opens and go after it closed.

use std::time::Duration;

use e2e::{
    campaign::{Campaign, SOON},
    door::Door,
    kubectl::Namespace,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::{PODS, REBUILT, ready_pods_until, replicas_until};

#[tokio::test]
async fn a_sale_warms_up_opens_on_time_closes_and_gives_its_pods_back() {
    let namespace = Namespace::create("window").await.unwrap();
    let door = Door::find().await.unwrap();
    let opens_at = Timestamp::now() + SignedDuration::from_secs(120);
    let spec = json!({
        "quantity": 100,
        "opensAt": opens_at,
        "closesAt": opens_at + SignedDuration::from_secs(3600),
        "intake": {"replicas": 3, "warmup": "100s"},
        "worker": {"minReplicas": 2, "maxReplicas": 3},
    });
    let sale = Campaign::start(&namespace.name, "sale", spec).await.unwrap();
    let status = sale.until(SOON, "waits", |status| status["state"] == "Waiting").await;
    assert_eq!(status["available"], 100);
    door.claim_until(SOON, &sale, "early", "NOT_OPEN_YET").await;

    sale.until(SOON, "asks for its pods", |status| status["replicas"]["intake"] == 3)
        .await;
    replicas_until(SOON, "intake", |count| count == 3).await;
    ready_pods_until("intake", 3).await;
    assert!(Timestamp::now() < opens_at, "the pods are there before the opening");

    door.claim_until(Duration::from_secs(240), &sale, "first", "SUCCESS")
        .await;
    let late = Timestamp::now().duration_since(opens_at);
    assert!(late < SignedDuration::from_secs(30), "open {late:#} after opensAt");
    sale.until(SOON, "is open", |status| status["state"] == "Open").await;
    replicas_until(SOON, "worker", |count| count == 2).await;

    let closes_at = Timestamp::now() + SignedDuration::from_secs(5);
    sale.change(json!({"closesAt": closes_at})).await.unwrap();
    // A holder asks: anybody else would be given a coupon before it closes.
    door.claim_until(SOON, &sale, "first", "CLOSED").await;
    sale.until(REBUILT, "is closed with its coupon", |status| {
        status["state"] == "Closed" && status["issued"] == 1
    })
    .await;
    for component in ["intake", "worker"] {
        replicas_until(PODS, component, |count| count == 1).await;
    }
}
