//! More claims than the door takes.

use testkit::{
    eventually::eventually,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::app::{SOON, TestApp, count, held_by, users};

#[tokio::test]
async fn a_full_queue_answers_at_once_and_what_was_taken_in_goes_on() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| {
        held_by(&proxy, settings);
        settings.door.max_in_flight_per_campaign = 20;
        settings.door.max_in_flight = 30;
    })
    .await;
    let (a, b) = (app.campaign(100).await, app.campaign(100).await);

    proxy.requests(Treatment::Hold);
    let in_flight = |expected: f64| {
        let app = &app;
        eventually(SOON, format!("{expected} claims in flight"), async move || {
            app.intake.metric("coupon_intake_in_flight").await == expected
        })
    };
    let waiting_a = app.intake.claim_all(&a, users("a", 20));
    let waiting_b = app.intake.claim_all(&b, users("b", 10));
    let refused = async {
        in_flight(30.0).await;
        let replies = app.intake.claim_all(&b, users("late", 50)).await;
        // Answered while nothing moves.
        assert_eq!(count(&replies, "OVERLOADED"), 50);
        replies[0].1.assert_problem(503, "OVERLOADED");
        proxy.restore();
    };
    let (accepted_a, accepted_b, ()) = tokio::join!(waiting_a, waiting_b, refused);
    assert_eq!(count(&accepted_a, "SUCCESS"), 20);
    assert_eq!(count(&accepted_b, "SUCCESS"), 10);
    in_flight(0.0).await;
    assert_eq!(app.intake.claim(&b, "later").await.code(), "SUCCESS");
}

#[tokio::test]
async fn one_campaign_cannot_take_all_the_room() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| {
        held_by(&proxy, settings);
        settings.door.max_in_flight_per_campaign = 20;
    })
    .await;
    let (a, b) = (app.campaign(100).await, app.campaign(100).await);

    proxy.requests(Treatment::Hold);
    let many = app.intake.claim_all(&a, users("a", 50));
    let other = async {
        eventually(SOON, "the campaign's room is full", async || {
            app.intake
                .metric("coupon_intake_claims_total{result=\"overloaded\"}")
                .await
                == 30.0
        })
        .await;
        let claim = app.intake.claim(&b, "b");
        let restore = async {
            eventually(SOON, "the other campaign's claim is taken in", async || {
                app.intake.metric("coupon_intake_in_flight").await == 21.0
            })
            .await;
            proxy.restore();
        };
        tokio::join!(claim, restore).0
    };
    let (replies, other) = tokio::join!(many, other);
    assert_eq!((count(&replies, "SUCCESS"), count(&replies, "OVERLOADED")), (20, 30));
    assert_eq!(other.code(), "SUCCESS");
}
