//! Kafka that does not take records, or whose acknowledgements are lost.

use std::time::Duration;

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

#[tokio::test]
async fn claims_of_a_campaign_that_is_sold_out_do_not_use_up_the_tries_of_the_others() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| settings.kafka = proxy.kafka_settings()).await;
    let (sold_out, open) = (app.campaign(0).await, app.campaign(100).await);

    proxy.replies(Treatment::Swallow);
    assert_eq!(app.intake.claim(&open, "first").await.outcome(), Some("unknown"));
    proxy.restore();

    // Many come for what is sold out, and few for the other.
    let crowd = async {
        let mut n = 0;
        loop {
            app.intake.claim_all(&sold_out, users(&format!("crowd-{n}"), 200)).await;
            n += 1;
        }
    };
    let opens = eventually(
        Duration::from_secs(8),
        "the door opens for the other campaign",
        async || app.intake.claim(&open, "second").await.code() == "SUCCESS",
    );
    tokio::select! {
        () = crowd => unreachable!("the crowd does not end"),
        () = opens => {}
    }
}

#[tokio::test]
async fn acknowledgements_that_are_late_but_in_time_do_not_shut_the_door() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| settings.kafka = proxy.kafka_settings()).await;
    let campaign = app.campaign(1_000).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.replies(Treatment::Delay(app.installation.installation.publish_timeout / 3));
    for round in 0..3 {
        let replies = app.intake.claim_all(&campaign, users(&format!("u{round}"), 100)).await;
        assert_eq!(count(&replies, "SUCCESS"), 100, "{replies:?}");
        assert_eq!(app.intake.metric("coupon_intake_kafka_open").await, 1.0);
    }
}

#[tokio::test]
async fn a_broker_that_falls_silent_costs_no_more_slots_than_claims_in_flight() {
    const IN_FLIGHT: usize = 50;
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| {
        settings.kafka = proxy.kafka_settings();
        settings.door.max_in_flight = IN_FLIGHT;
    })
    .await;
    let campaign = app.campaign(1_000).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.replies(Treatment::Swallow);
    let mut unknown = 0;
    for round in 0.. {
        let replies = app.intake.claim_all(&campaign, users(&format!("u{round}"), 200)).await;
        unknown += replies.iter().filter(|(_, reply)| reply.outcome().is_some()).count();
        if count(&replies, "COUPON_ISSUE_KAFKA_ERROR") == replies.len() {
            break;
        }
    }
    let taken = app.numbers(&campaign).await.taken as usize - 1;
    assert_eq!(taken, unknown, "whoever was told a plain no has no slot");
    assert!(taken <= IN_FLIGHT, "{taken} slots for {IN_FLIGHT} claims in flight");
}
