//! A state that is missing, or somebody else's.

use campaign::{
    identity::CampaignId,
    postgres::campaign::CampaignTerms,
    redis::{lock::Locks, state::StateAnswer},
};
use jiff::{SignedDuration, Timestamp};
use testkit::eventually::eventually;
use uuid::Uuid;

use crate::app::{SOON, TestApp, count, terms, users};

#[tokio::test]
async fn the_first_claims_build_the_state_once_and_then_succeed() {
    let app = TestApp::start().await;
    let row = app.campaign_without_state(terms()).await;

    let replies = app.intake.claim_all(&row.name, users("early", 20)).await;
    assert!(count(&replies, "REBUILDING") > 0);
    for (_, reply) in &replies {
        match reply.code() {
            "REBUILDING" => reply.assert_problem(503, "REBUILDING"),
            code => assert_eq!(code, "SUCCESS", "the state may be there before the last of them"),
        }
    }

    eventually(SOON, "the state is built and claims succeed", async || {
        app.intake.claim(&row.name, "u").await.code() != "REBUILDING"
    })
    .await;
    app.intake.claim(&row.name, "u").await.assert_problem(409, "DUPLICATE");
    assert_eq!(
        app.intake.metric("coupon_intake_rebuilds_total{result=\"done\"}").await,
        1.0
    );
}

#[tokio::test]
async fn a_sale_that_is_over_is_closed_without_a_rebuild() {
    let app = TestApp::start().await;
    let row = app
        .campaign_without_state(CampaignTerms {
            closes_at: Some(Timestamp::now() - SignedDuration::from_secs(60)),
            ..terms()
        })
        .await;
    app.intake.claim(&row.name, "u").await.assert_problem(403, "CLOSED");
    assert_eq!(app.intake.metric("coupon_intake_rebuilds_started_total").await, 0.0);
    assert_eq!(app.state.state(&row.name).await.unwrap(), StateAnswer::NotInitialized);
    let shown = app.intake.get(&format!("/campaigns/{}", row.name)).await;
    assert!(
        shown.status.is_success() && shown.body["available"].is_null(),
        "{shown:?}"
    );
}

#[tokio::test]
async fn a_state_of_another_campaign_of_that_name_counts_as_missing() {
    // A rebuild waits for claims that may be on their way, as long as they may take.
    let app = TestApp::start_with(|_| {}).await;
    let row = app.campaign_without_state(terms()).await;
    app.build_state(&row, CampaignId(Uuid::now_v7())).await;

    app.intake.claim(&row.name, "u").await.assert_problem(503, "REBUILDING");
    assert!(
        app.records().await.is_empty(),
        "nothing may be published under another id"
    );
    eventually(SOON, "the state is built anew and the claim succeeds", async || {
        app.intake.claim(&row.name, "u").await.code() == "SUCCESS"
    })
    .await;
    assert_eq!(app.numbers(&row.name).await.campaign, row.id);
}

#[tokio::test]
async fn a_door_that_is_shut_down_leaves_its_rebuild_to_the_next_one() {
    // The rebuild waits for claims that may be on their way: longer than this test takes.
    let app = TestApp::start().await;
    let row = app.campaign_without_state(terms()).await;
    app.build_state(&row, CampaignId(Uuid::now_v7())).await;
    app.intake.claim(&row.name, "u").await.assert_problem(503, "REBUILDING");
    eventually(SOON, "a rebuild is under way", async || {
        let state = app.state.state(&row.name).await.unwrap();
        matches!(state, StateAnswer::Rebuilding { .. })
    })
    .await;

    app.intake.shutdown.cancel();
    tokio::time::timeout(SOON, app.intake.running.stopped())
        .await
        .unwrap()
        .unwrap();
    let lock = app.installation.naming.rebuild_lock(&row.name);
    let locks = Locks::new(app.installation.redis().await.unwrap());
    let free = locks.try_acquire(&lock, SOON, 0).await.unwrap();
    assert!(free.is_some(), "the next one need not wait until its lock has run out");
}
