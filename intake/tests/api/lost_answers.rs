//! Redis whose answers are lost, or that is not there.

use campaign::redis::state::{Marker, MarkerAnswer};
use testkit::{eventually::eventually, proxy::Proxy, redis::RedisServer};

use crate::app::{SOON, TestApp, user};

#[tokio::test]
async fn a_reserve_call_whose_answer_is_lost_is_not_run_again_and_not_published() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| settings.redis = proxy.redis_settings()).await;
    let campaign = app.campaign(10).await;
    assert_eq!(app.intake.claim(&campaign, "before").await.code(), "SUCCESS");

    proxy.drop_replies();
    let lost = app.intake.claim_with_key(&campaign, "u", "k").await;
    proxy.restore();

    lost.assert_problem(503, "STATE_UNAVAILABLE");
    assert_eq!(lost.outcome(), Some("unknown"));
    assert_eq!(app.published(&campaign).await, ["before"]);
    let numbers = app.numbers(&campaign).await;
    assert_eq!((numbers.taken, numbers.pending), (2, 2), "it ran once");
    let marker = app.state.marker(&campaign, &user("u")).await.unwrap();
    assert!(
        matches!(marker, MarkerAnswer::Present(Some(Marker::Holds(request, _))) if request == lost.request_id()),
        "{marker:?}"
    );

    // Until the sweeper frees it, the same key is pending and is not published either.
    let again = eventually(SOON, "Redis answers the door again", async || {
        let reply = app.intake.claim_with_key(&campaign, "u", "k").await;
        (reply.code() != "STATE_UNAVAILABLE").then_some(reply)
    })
    .await;
    assert_eq!((again.code(), again.request_id()), ("PENDING", lost.request_id()));
    assert_eq!(
        app.intake.status(&campaign, "u", lost.request_id()).await.code(),
        "PENDING"
    );
    assert_eq!(app.published(&campaign).await, ["before"]);
}

#[tokio::test]
async fn without_redis_claims_are_refused_and_a_status_is_unknown() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| settings.redis = proxy.redis_settings()).await;
    let campaign = app.campaign(10).await;
    let held = app.intake.claim(&campaign, "u").await.request_id();

    proxy.shut().await;
    app.intake
        .claim(&campaign, "v")
        .await
        .assert_problem(503, "STATE_UNAVAILABLE");
    app.intake
        .status(&campaign, "u", held)
        .await
        .assert_problem(503, "STATE_UNAVAILABLE");
    // What was shown a moment ago may still be shown.
    let shown = eventually(SOON, "the numbers are too old to be shown", async || {
        let shown = app.intake.get(&format!("/campaigns/{campaign}")).await;
        (shown.body["code"] == "STATE_UNAVAILABLE").then_some(shown)
    })
    .await;
    shown.assert_problem(503, "STATE_UNAVAILABLE");
    // What Postgres knows needs no Redis.
    app.persist(&campaign).await;
    assert_eq!(app.intake.status(&campaign, "u", held).await.code(), "ISSUED");

    proxy.restore();
    eventually(SOON, "claims succeed again without a restart", async || {
        app.intake.claim(&campaign, "w").await.code() == "SUCCESS"
    })
    .await;
}
