//! No operator runs: the sale goes on.

use std::time::Duration;

use e2e::{
    burst::NAMESPACE,
    campaign::{Campaign, SOON},
    door::Door,
    kubectl::{Namespace, kubectl},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::{REBUILT, in_server, ready_pods_until};

async fn operators(count: u32) {
    let replicas = format!("--replicas={count}");
    kubectl(&["-n", NAMESPACE, "scale", "deployment/coupon-operator", &replicas])
        .await
        .expect("the operator is scaled");
    kubectl(&[
        "-n",
        NAMESPACE,
        "rollout",
        "status",
        "deployment/coupon-operator",
        "--timeout=120s",
    ])
    .await
    .expect("the operator is as large as was asked");
}

#[tokio::test]
async fn a_sale_opens_is_rebuilt_and_closes_without_an_operator() {
    let namespace = Namespace::create("away").await.unwrap();
    let door = Door::find().await.unwrap();
    let opens_at = Timestamp::now() + SignedDuration::from_secs(60);
    let closes_at = opens_at + SignedDuration::from_secs(75);
    let spec = json!({"quantity": 10, "opensAt": opens_at, "closesAt": closes_at});
    let sale = Campaign::start(&namespace.name, "sale", spec).await.unwrap();
    operators(0).await;

    door.claim_until(SOON, &sale, "ada", "NOT_OPEN_YET").await;
    door.claim_until(SOON * 2, &sale, "ada", "SUCCESS").await;
    in_server("redis", &["redis-cli", "FLUSHALL"]).await;
    door.claim_until(REBUILT, &sale, "bob", "SUCCESS").await;
    door.claim_until(SOON, &sale, "ada", "DUPLICATE").await;
    // A holder asks: anybody else would be given a coupon before it closes.
    door.claim_until(Duration::from_secs(120), &sale, "ada", "CLOSED").await;

    operators(2).await;
    ready_pods_until("operator", 2).await;
    sale.until(REBUILT, "is closed with its coupons", |status| {
        status["state"] == "Closed" && status["issued"] == 2
    })
    .await;
}
