//! Kafka that does not take records, or whose acknowledgements are lost.

use testkit::{eventually::eventually, kafka::KafkaServer, proxy::Treatment};

use crate::app::{SOON, TestApp, count, users};

#[tokio::test]
async fn an_outage_does_not_eat_the_stock() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| settings.kafka = proxy.kafka_settings()).await;
    let campaign = app.campaign(1_000).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.refuse();
    eventually(SOON, "the door is shut", async || {
        app.intake.metric("coupon_intake_kafka_open").await == 0.0
    })
    .await;
    let taken_before = app.numbers(&campaign).await.taken;
    let replies = app.intake.claim_all(&campaign, users("u", 5_000)).await;
    assert_eq!(count(&replies, "COUPON_ISSUE_KAFKA_ERROR"), 5_000);
    // Those that were let through to try are the only ones without a plain no.
    let tried = replies.iter().filter(|(_, reply)| reply.outcome().is_some()).count();
    let taken = app.numbers(&campaign).await.taken - taken_before;
    assert!(
        taken <= tried as i64 && tried <= 10,
        "{taken} taken by {tried} probes of 5,000 claims"
    );

    proxy.restore();
    eventually(SOON, "the door opens by itself", async || {
        app.intake.claim(&campaign, "after").await.code() != "COUPON_ISSUE_KAFKA_ERROR"
    })
    .await;
    let left = app.numbers(&campaign).await.available() as usize;
    let replies = app.intake.claim_all(&campaign, users("after", 2_000)).await;
    assert_eq!(count(&replies, "SUCCESS"), left);
    assert_eq!(count(&replies, "SOLD_OUT"), 2_000 - left);
}

#[tokio::test]
async fn a_claim_without_acknowledgement_is_unknown_and_nothing_is_given_back() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| settings.kafka = proxy.kafka_settings()).await;
    let campaign = app.campaign(10).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.replies(Treatment::Swallow);
    let unknown = app.intake.claim_with_key(&campaign, "u", "k").await;
    unknown.assert_problem(503, "COUPON_ISSUE_KAFKA_ERROR");
    assert_eq!(unknown.outcome(), Some("unknown"));
    let request = unknown.request_id();
    assert_eq!(
        app.numbers(&campaign).await.taken,
        2,
        "it may be stored: its slot stays taken"
    );
    assert_eq!(app.intake.status(&campaign, "u", request).await.code(), "PENDING");

    // The door is shut now, before reserving.
    let refused = app.intake.claim(&campaign, "v").await;
    refused.assert_problem(503, "COUPON_ISSUE_KAFKA_ERROR");
    assert_eq!(refused.outcome(), None);
    assert_eq!(app.numbers(&campaign).await.taken, 2);

    proxy.restore();
    eventually(SOON, "the door opens by itself", async || {
        app.intake.claim(&campaign, "w").await.code() == "SUCCESS"
    })
    .await;
    // The record had come through: the same key ends as one coupon.
    assert_eq!(app.intake.claim_with_key(&campaign, "u", "k").await.code(), "PENDING");
    app.persist(&campaign).await;
    let settled = app.intake.claim_with_key(&campaign, "u", "k").await;
    assert_eq!((settled.code(), settled.request_id()), ("SUCCESS", request));
    let users = app.published(&campaign).await;
    assert_eq!(users.iter().filter(|user| *user == "u").count(), 1, "{users:?}");
}

#[tokio::test]
async fn the_same_key_is_answered_while_kafka_is_out() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| settings.kafka = proxy.kafka_settings()).await;
    let campaign = app.campaign(10).await;
    let first = app.intake.claim_with_key(&campaign, "u", "k").await;
    assert_eq!(first.code(), "SUCCESS");

    proxy.refuse();
    for _ in 0..2 {
        let again = app.intake.claim_with_key(&campaign, "u", "k").await;
        assert_eq!((again.code(), again.request_id()), ("PENDING", first.request_id()));
        eventually(SOON, "the door is shut", async || {
            app.intake.metric("coupon_intake_kafka_open").await == 0.0
        })
        .await;
    }
    assert_eq!(
        app.intake.status(&campaign, "u", first.request_id()).await.code(),
        "PENDING"
    );
    assert_eq!(app.numbers(&campaign).await.taken, 1);

    proxy.restore();
    app.persist(&campaign).await;
    eventually(SOON, "the same key succeeds", async || {
        app.intake.claim_with_key(&campaign, "u", "k").await.code() == "SUCCESS"
    })
    .await;
    assert_eq!(app.published(&campaign).await, ["u"]);
}
