//! Kafka that does not take records, or whose acknowledgements are lost.

use std::time::{Duration, Instant};

use campaign::name::CampaignName;
use intake::IntakeSettings;
use testkit::{
    eventually::eventually,
    kafka::KafkaServer,
    proxy::{Proxy, Treatment},
};

use crate::app::{SOON, TestApp, count, users};

/// Puts the proxy before Kafka. What is not acknowledged is given up soon, but not too soon for a busy machine.
fn behind(proxy: &Proxy, settings: &mut IntakeSettings) {
    settings.kafka = proxy.kafka_settings();
    settings.installation.publish_timeout = Duration::from_secs(8);
    settings.redis.redis_timeout = Duration::from_secs(30);
}

/// Claims until one succeeds, each time as somebody else: whoever was let through to try, and was told that it is
/// unknown, has a slot.
async fn opens(app: &TestApp, campaign: &CampaignName) {
    let mut n = 0;
    eventually(SOON, "the door opens by itself", async || {
        n += 1;
        app.intake.claim(campaign, &format!("opens-{n}")).await.code() == "SUCCESS"
    })
    .await;
}

#[tokio::test]
async fn an_outage_does_not_eat_the_stock() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| behind(&proxy, settings)).await;
    let campaign = app.campaign(1_000).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.refuse();
    eventually(SOON, "the door is shut", async || {
        app.intake.metric("coupon_intake_kafka_open").await == 0.0
    })
    .await;
    let taken_before = app.numbers(&campaign).await.taken;
    let began = Instant::now();
    let replies = app.intake.claim_all(&campaign, users("u", 5_000)).await;
    assert_eq!(count(&replies, "COUPON_ISSUE_KAFKA_ERROR"), 5_000);
    // Those that were let through to try are the only ones without a plain no.
    let tried = replies.iter().filter(|(_, reply)| reply.outcome().is_some()).count();
    let taken = app.numbers(&campaign).await.taken - taken_before;
    let seconds = began.elapsed().as_secs() as usize;
    assert!(
        taken <= tried as i64 && tried <= seconds + 2,
        "{taken} taken by {tried} probes of 5,000 claims in {seconds} s"
    );

    proxy.restore();
    opens(&app, &campaign).await;
    let left = app.numbers(&campaign).await.available() as usize;
    let replies = app.intake.claim_all(&campaign, users("after", 2_000)).await;
    assert_eq!(count(&replies, "SUCCESS"), left);
    assert_eq!(count(&replies, "SOLD_OUT"), 2_000 - left);
}

#[tokio::test]
async fn a_claim_without_acknowledgement_is_unknown_and_nothing_is_given_back() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| behind(&proxy, settings)).await;
    let campaign = app.campaign(10_000).await;
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

    // The door is shut now, before reserving, but for the one that is let through to try.
    let (mut round, mut tried) = (0, 0);
    let refused = eventually(SOON, "a plain no", async || {
        round += 1;
        let replies = app.intake.claim_all(&campaign, users(&format!("v{round}"), 20)).await;
        tried += replies.iter().filter(|(_, reply)| reply.outcome().is_some()).count();
        let refused = replies.into_iter().find(|(_, reply)| reply.outcome().is_none());
        refused.map(|(_, reply)| reply)
    })
    .await;
    refused.assert_problem(503, "COUPON_ISSUE_KAFKA_ERROR");
    assert_eq!(app.numbers(&campaign).await.taken, 2 + tried as i64);

    proxy.restore();
    opens(&app, &campaign).await;
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
    let app = TestApp::start_with(|settings| behind(&proxy, settings)).await;
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
    let app = TestApp::start_with(|settings| behind(&proxy, settings)).await;
    let (sold_out, open) = (app.campaign(0).await, app.campaign(10_000).await);

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
    tokio::select! {
        () = crowd => unreachable!("the crowd does not end"),
        () = opens(&app, &open) => {}
    }
}

#[tokio::test]
async fn acknowledgements_that_are_late_but_in_time_do_not_shut_the_door() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| {
        behind(&proxy, settings);
        settings.installation.publish_timeout = Duration::from_secs(15);
    })
    .await;
    let campaign = app.campaign(1_000).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.replies(Treatment::Delay(Duration::from_secs(1)));
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
        behind(&proxy, settings);
        settings.door.max_in_flight = IN_FLIGHT;
    })
    .await;
    let campaign = app.campaign(1_000).await;
    assert_eq!(app.intake.claim(&campaign, "first").await.code(), "SUCCESS");

    proxy.replies(Treatment::Swallow);
    let (mut unknown, mut rounds) = (0, 0);
    loop {
        rounds += 1;
        let replies = app.intake.claim_all(&campaign, users(&format!("u{rounds}"), 200)).await;
        unknown += replies.iter().filter(|(_, reply)| reply.outcome().is_some()).count();
        if count(&replies, "COUPON_ISSUE_KAFKA_ERROR") == replies.len() {
            break;
        }
    }
    let taken = app.numbers(&campaign).await.taken as usize - 1;
    assert_eq!(taken, unknown, "whoever was told a plain no has no slot");
    // Those in flight when it fell silent, and the few that were let through to try since.
    assert!(
        taken <= IN_FLIGHT + 2 * rounds,
        "{taken} slots for {IN_FLIGHT} claims in flight and {rounds} rounds"
    );
}
