//! Redis loses everything in the middle of a burst.

use e2e::{
    burst::{Burst, outcome},
    campaign::{Campaign, SOON, condition, reason},
    kubectl::{Namespace, kubectl},
};
use serde_json::json;

use crate::{REBUILT, SETTLED, in_server};

#[tokio::test]
async fn a_flushed_redis_is_rebuilt_and_nobody_loses_a_coupon() {
    let namespace = Namespace::create("flushed").await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 1000}))
        .await
        .unwrap();
    let epoch = sale.ready().await["epoch"].as_i64().unwrap();
    let burst = Burst::start(&sale, 3000, 60, true).await.unwrap();
    sale.until(SOON, "has sold some", |status| status["taken"].as_i64() > Some(200))
        .await;

    in_server("redis", &["redis-cli", "FLUSHALL"]).await;
    let status = sale
        .until(REBUILT, "is rebuilt", |status| {
            status["epoch"].as_i64() > Some(epoch) && condition(status, "StateReady") == "True"
        })
        .await;
    assert!(status["lastRebuild"]["time"].is_string(), "{status:#}");

    let said = burst.finish().await.unwrap();
    assert_eq!(outcome(&said, "SUCCESS"), 1000, "{said}");
    let status = sale.settled(SETTLED, 1000).await;
    assert_eq!(condition(&status, "Conserved"), "True");
}

#[tokio::test]
async fn a_rebuild_can_be_asked_for_with_an_annotation() {
    let namespace = Namespace::create("asked").await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 10}))
        .await
        .unwrap();
    let epoch = sale.ready().await["epoch"].as_i64().unwrap();
    kubectl(&[
        "-n",
        &namespace.name,
        "annotate",
        "ccamp",
        "sale",
        "coupon-operator.dev/rebuild=please",
    ])
    .await
    .unwrap();
    // The door is shut for as long as the rebuild waits, and the status says so.
    sale.until(SOON, "tells that it is being rebuilt", |status| {
        status["state"] == "Unavailable" && reason(status, "Ready") == "Rebuilding"
    })
    .await;
    let status = sale
        .until(REBUILT, "is rebuilt", |status| {
            status["epoch"].as_i64() > Some(epoch) && condition(status, "Ready") == "True"
        })
        .await;
    assert_eq!(status["lastRebuild"]["reason"], "Requested");
}
