//! `POST /coupon-issues` while everything works.

use campaign::identity::RequestId;
use serde_json::json;
use testkit::{
    eventually::eventually,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::app::{Intake, SOON, TestApp, count, held_by, intake_settings, users};

#[tokio::test]
async fn success_is_reserved_in_redis_and_stored_in_kafka() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;

    let reply = app.intake.claim(&campaign, "a b&c").await;

    assert_eq!((reply.status.as_u16(), reply.code()), (202, "SUCCESS"), "{reply:?}");
    assert_eq!(reply.headers["content-type"], "application/json");
    assert_eq!(reply.headers["cache-control"], "no-store");
    let records = app.records().await;
    let [located] = records.as_slice() else {
        panic!("{records:?}")
    };
    let record = &located.record;
    assert_eq!(record.campaign, campaign);
    assert_eq!(record.claims[0].user_id.as_str(), "a b&c");
    assert_eq!(record.claims[0].request_id, reply.request_id());
    let numbers = app.numbers(&campaign).await;
    assert_eq!((record.id, record.epoch), (numbers.campaign, numbers.epoch));
    assert_eq!((numbers.taken, numbers.pending), (1, 1));

    let location = reply.headers["location"].to_str().unwrap();
    let status = app.intake.get(location).await;
    assert_eq!(status.code(), "PENDING", "{status:?}");
}

#[tokio::test]
async fn a_bare_name_means_the_installations_namespace() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let body = json!({"campaign": campaign.name(), "userId": "u"});
    assert_eq!(app.intake.claim_body(&body, None).await.code(), "SUCCESS");
    app.intake.claim(&campaign, "u").await.assert_problem(409, "DUPLICATE");
}

#[tokio::test]
async fn two_intakes_and_200_users_for_3_coupons() {
    let app = TestApp::start().await;
    let other = Intake::start(intake_settings(&app.installation)).await;
    let campaign = app.campaign(3).await;
    eventually(SOON, "the other intake knows the campaign", async || {
        other.get(&format!("/campaigns/{campaign}")).await.status.is_success()
    })
    .await;

    let (a, b) = tokio::join!(
        app.intake.claim_all(&campaign, users("a", 100)),
        other.claim_all(&campaign, users("b", 100)),
    );

    let replies = [a, b].concat();
    assert_eq!(count(&replies, "SUCCESS"), 3);
    assert_eq!(count(&replies, "SOLD_OUT"), 197);
    assert_eq!(app.published(&campaign).await, winners(&replies));
}

#[tokio::test]
async fn nobody_wins_where_there_is_nothing_and_one_where_there_is_one() {
    let app = TestApp::start().await;
    let nothing = app.campaign(0).await;
    app.intake.claim(&nothing, "u").await.assert_problem(410, "SOLD_OUT");

    let one = app.campaign(1).await;
    let replies = app.intake.claim_all(&one, users("u", 2)).await;
    assert_eq!((count(&replies, "SUCCESS"), count(&replies, "SOLD_OUT")), (1, 1));
}

#[tokio::test]
async fn clicking_often_uses_one_coupon() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;

    let clicks = app
        .intake
        .claim_all(&campaign, std::iter::repeat_n("a".to_owned(), 50))
        .await;
    assert_eq!((count(&clicks, "SUCCESS"), count(&clicks, "DUPLICATE")), (1, 49));
    let holder = clicks.iter().find(|(_, reply)| reply.code() == "SUCCESS").unwrap();
    for (_, reply) in &clicks {
        assert_eq!(
            reply.request_id(),
            holder.1.request_id(),
            "a duplicate names the holder"
        );
    }

    let others = app.intake.claim_all(&campaign, users("other", 9)).await;
    assert_eq!(count(&others, "SUCCESS"), 9);
    // Who has one is told so, also when nothing is left.
    app.intake.claim(&campaign, "a").await.assert_problem(409, "DUPLICATE");
    app.intake
        .claim(&campaign, "late")
        .await
        .assert_problem(410, "SOLD_OUT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_told_success_is_in_kafka_and_nobody_else() {
    let app = TestApp::start().await;
    let campaign = app.campaign(100).await;

    let replies = app.intake.claim_all(&campaign, users("u", 10_000)).await;

    assert_eq!(count(&replies, "SUCCESS"), 100);
    assert_eq!(count(&replies, "SOLD_OUT"), 9_900);
    assert_eq!(app.published(&campaign).await, winners(&replies));
}

#[tokio::test]
async fn the_same_key_is_the_same_request() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;

    let first = app.intake.claim_with_key(&campaign, "u", "k").await;
    assert_eq!(first.code(), "SUCCESS");
    // Its batch is pending: the worker has not seen it.
    let again = app.intake.claim_with_key(&campaign, "u", "k").await;
    assert_eq!((again.status.as_u16(), again.code()), (202, "PENDING"));
    app.persist(&campaign).await;
    let settled = app.intake.claim_with_key(&campaign, "u", "k").await;
    assert_eq!((settled.status.as_u16(), settled.code()), (202, "SUCCESS"));

    for reply in [&again, &settled] {
        assert_eq!(reply.request_id(), first.request_id());
        assert_eq!(reply.headers["location"], first.headers["location"]);
    }
    assert_eq!(app.published(&campaign).await, ["u"], "nothing is published again");
    assert_eq!(app.numbers(&campaign).await.taken, 1);
    let row = app.database.coupon(first.request_id()).await.unwrap().unwrap();
    assert_eq!(row.user.as_str(), "u");
}

#[tokio::test]
async fn a_key_belongs_to_one_user_in_one_campaign() {
    let app = TestApp::start().await;
    let (a, b) = (app.campaign(10).await, app.campaign(10).await);
    let mut ids: Vec<RequestId> = Vec::new();
    for (campaign, user) in [(&a, "u"), (&a, "v"), (&b, "u")] {
        let reply = app.intake.claim_with_key(campaign, user, "k").await;
        assert_eq!(reply.code(), "SUCCESS");
        ids.push(reply.request_id());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    app.intake
        .claim_with_key(&a, "u", "another")
        .await
        .assert_problem(409, "DUPLICATE");
}

#[tokio::test]
async fn claims_that_come_during_a_call_go_together() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| held_by(&proxy, settings)).await;
    let campaign = app.campaign(1_000).await;

    proxy.requests(Treatment::Hold);
    let claims = app.intake.claim_all(&campaign, users("u", 200));
    let release = async {
        eventually(SOON, "all claims have come", async || {
            app.intake.metric("coupon_intake_in_flight").await == 200.0
        })
        .await;
        proxy.restore();
    };
    let (replies, ()) = tokio::join!(claims, release);

    assert_eq!(count(&replies, "SUCCESS"), 200);
    let records = app.records().await;
    // Two calls were under way; the rest waited for them and fits one more, or two.
    assert!((2..=4).contains(&records.len()), "{} records", records.len());
    assert_eq!(
        app.intake.metric("coupon_intake_reserve_claims_count").await,
        records.len() as f64
    );
}

#[tokio::test]
async fn a_claim_goes_on_when_its_client_hangs_up() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| held_by(&proxy, settings)).await;
    let campaign = app.campaign(10).await;

    proxy.requests(Treatment::Hold);
    {
        let claim = app.intake.claim_with_key(&campaign, "gone", "k");
        let came = eventually(SOON, "the claim has come", async || {
            app.intake.metric("coupon_intake_in_flight").await == 1.0
        });
        tokio::select! {
            reply = claim => panic!("answered although Redis cannot be: {reply:?}"),
            () = came => {}
        }
    }
    proxy.restore();

    eventually(SOON, "the claim is in Kafka", async || {
        app.published(&campaign).await == ["gone"]
    })
    .await;
    app.persist(&campaign).await;
    assert_eq!(
        app.intake.claim_with_key(&campaign, "gone", "k").await.code(),
        "SUCCESS"
    );
}

fn winners(replies: &[(String, crate::app::Reply)]) -> Vec<String> {
    let mut users: Vec<String> = replies
        .iter()
        .filter(|(_, reply)| reply.code() == "SUCCESS")
        .map(|(user, _)| user.clone())
        .collect();
    users.sort();
    users
}
