//! The orderly end: no new connections, claims on their way are answered and stored.

use testkit::{
    eventually::eventually,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::app::{SOON, TestApp, count, held_by, users};

#[tokio::test]
async fn claims_on_their_way_are_answered_and_then_it_ends() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| held_by(&proxy, settings)).await;
    let campaign = app.campaign(1_000).await;

    proxy.requests(Treatment::Hold);
    let claims = app.intake.claim_all(&campaign, users("u", 100));
    let end = async {
        eventually(SOON, "all claims have come", async || {
            app.intake.metric("coupon_intake_in_flight").await == 100.0
        })
        .await;
        app.intake.shutdown.cancel();
        eventually(SOON, "it is not ready any more", async || {
            app.intake.get_internal("/readyz").await.status.as_u16() == 503
        })
        .await;
        assert_eq!(app.intake.get_internal("/livez").await.status.as_u16(), 200);
        proxy.restore();
    };
    let (replies, ()) = tokio::join!(claims, end);
    assert_eq!(count(&replies, "SUCCESS"), 100);

    let public = app.intake.public.clone();
    assert_eq!(app.published(&campaign).await.len(), 100);
    tokio::time::timeout(SOON, app.intake.running.stopped())
        .await
        .expect("it ends")
        .unwrap();
    assert!(
        reqwest::get(format!("{public}/livez")).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn claims_of_clients_that_hung_up_are_finished_too() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| held_by(&proxy, settings)).await;
    let campaign = app.campaign(10).await;

    proxy.requests(Treatment::Hold);
    {
        let claim = app.intake.claim(&campaign, "gone");
        let came = eventually(SOON, "the claim has come", async || {
            app.intake.metric("coupon_intake_in_flight").await == 1.0
        });
        tokio::select! {
            reply = claim => panic!("answered although Redis cannot be: {reply:?}"),
            () = came => {}
        }
    }
    app.intake.shutdown.cancel();
    proxy.restore();
    let TestApp { intake, .. } = &app;
    eventually(SOON, "the claim is in Kafka", async || {
        app.published(&campaign).await == ["gone"]
    })
    .await;
    eventually(SOON, "nothing is in flight or it has ended", async || {
        reqwest::get(format!("{}/livez", intake.internal)).await.is_err()
    })
    .await;
}
