//! Terms that change while a sale is running.

use e2e::{
    burst::{Burst, outcome},
    campaign::{Campaign, SOON, condition, reason},
    door::Door,
    kubectl::Namespace,
};
use serde_json::json;

use crate::SETTLED;

#[tokio::test]
async fn a_quantity_grows_in_the_middle_of_a_burst() {
    let namespace = Namespace::create("grows").await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 100}))
        .await
        .unwrap();
    let burst = Burst::start(&sale, 4000, 50, true).await.unwrap();
    // It lasts far longer than a change takes.
    sale.until(SOON, "has sold some", |status| status["taken"].as_i64() > Some(50))
        .await;
    sale.change(json!({"quantity": 400})).await.unwrap();
    let said = burst.finish().await.unwrap();
    assert_eq!(outcome(&said, "SUCCESS"), 400, "{said}");
    sale.settled(SETTLED, 400).await;
}

#[tokio::test]
async fn a_quantity_below_what_is_taken_harms_nobody_and_is_told() {
    let namespace = Namespace::create("shrinks").await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 300}))
        .await
        .unwrap();
    Burst::start(&sale, 200, 0, true).await.unwrap().finish().await.unwrap();
    sale.change(json!({"quantity": 50})).await.unwrap();
    let status = sale
        .until(SOON, "tells that it cannot shrink so far", |status| {
            condition(status, "Degraded") == "True" && reason(status, "Degraded") == "QuantityBelowTaken"
        })
        .await;
    assert_eq!((&status["quantity"], &status["issued"]), (&200.into(), &200.into()));
    let door = Door::find().await.unwrap();
    door.claim_until(SOON, &sale, "one-more", "SOLD_OUT").await;

    sale.change(json!({"quantity": 201})).await.unwrap();
    sale.until(SOON, "is well again", |status| condition(status, "Degraded") == "False")
        .await;
    door.claim_until(SOON, &sale, "one-more", "SUCCESS").await;
}

#[tokio::test]
async fn a_campaign_is_paused_and_goes_on() {
    let namespace = Namespace::create("pause").await.unwrap();
    let door = Door::find().await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 10}))
        .await
        .unwrap();
    door.claim_until(SOON, &sale, "before", "SUCCESS").await;
    sale.change(json!({"paused": true})).await.unwrap();
    // A holder asks: anybody else would be given a coupon before it is paused.
    door.claim_until(SOON, &sale, "before", "PAUSED").await;
    door.claim_until(SOON, &sale, "meanwhile", "PAUSED").await;
    sale.until(SOON, "is paused", |status| status["state"] == "Paused")
        .await;
    sale.change(json!({"paused": false})).await.unwrap();
    door.claim_until(SOON, &sale, "meanwhile", "SUCCESS").await;
    sale.until(SOON, "is open", |status| status["state"] == "Open").await;
}
