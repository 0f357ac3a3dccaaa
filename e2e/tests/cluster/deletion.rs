//! Campaigns that are deleted, and applied again under their names.

use std::time::Duration;

use e2e::{
    burst::Burst,
    campaign::{Campaign, SOON},
    door::Door,
    kubectl::Namespace,
};
use serde_json::json;

/// The last claims are drained within the publish timeout and a sweep.
const DRAINED: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_campaign_that_is_being_written_about_is_deleted_within_seconds() {
    let namespace = Namespace::create("deleted").await.unwrap();
    let sale = Campaign::start(&namespace.name, "sale", json!({"quantity": 5000}))
        .await
        .unwrap();
    // Each claim changes the status that the operator writes.
    let burst = Burst::start(&sale, 600, 40, false).await.unwrap();
    sale.until(SOON, "has sold some", |status| status["taken"].as_i64() > Some(50))
        .await;
    sale.delete(DRAINED).await.unwrap();
    assert!(sale.read().await.unwrap().is_none());
    // Its users hear that it is gone; how the audit of a campaign that is gone ends does not matter.
    drop(burst);
}

#[tokio::test]
async fn a_retained_campaign_goes_on_with_its_holders() {
    let namespace = Namespace::create("retained").await.unwrap();
    let door = Door::find().await.unwrap();
    let spec = json!({"quantity": 10, "deletionPolicy": "Retain"});
    let sale = Campaign::start(&namespace.name, "sale", spec.clone()).await.unwrap();
    for user in ["ada", "bob", "cid"] {
        door.claim_until(SOON, &sale, user, "SUCCESS").await;
    }
    sale.delete(DRAINED).await.unwrap();
    sale.apply(spec).await.unwrap();
    let status = sale
        .until(SOON, "has its holders again", |status| {
            status["issued"] == 3 && status["available"] == 7
        })
        .await;
    assert_eq!(status["state"], "Open");
    door.claim_until(SOON, &sale, "ada", "DUPLICATE").await;
    door.claim_until(SOON, &sale, "dan", "SUCCESS").await;
}

#[tokio::test]
async fn a_deleted_campaign_of_the_other_policy_leaves_its_name_to_a_new_one() {
    let namespace = Namespace::create("archived").await.unwrap();
    let door = Door::find().await.unwrap();
    let spec = json!({"quantity": 10, "deletionPolicy": "Delete"});
    let sale = Campaign::start(&namespace.name, "sale", spec.clone()).await.unwrap();
    door.claim_until(SOON, &sale, "ada", "SUCCESS").await;
    sale.delete(DRAINED).await.unwrap();
    door.claim_until(SOON, &sale, "bob", "CAMPAIGN_NOT_FOUND").await;
    sale.apply(spec).await.unwrap();
    let status = sale.ready().await;
    assert_eq!((&status["issued"], &status["available"]), (&0.into(), &10.into()));
    door.claim_until(SOON, &sale, "ada", "SUCCESS").await;
}
