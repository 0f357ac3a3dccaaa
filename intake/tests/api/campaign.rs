//! `GET /campaigns/{name}`.

use std::time::Instant;

use campaign::postgres::campaign::CampaignTerms;
use intake::numbers::LONGEST_AGE;
use jiff::Timestamp;
use testkit::{eventually::eventually, installation::TestInstallation, redis::RedisServer};

use crate::app::{SOON, TestApp, terms};

#[tokio::test]
async fn quantity_what_is_free_and_the_window() {
    let app = TestApp::start().await;
    let closes_at = Timestamp::from_second(Timestamp::now().as_second() + 3_600).unwrap();
    let campaign = app
        .campaign_with(CampaignTerms {
            closes_at: Some(closes_at),
            ..terms()
        })
        .await;
    app.intake.claim(&campaign, "u").await;

    for path in [
        format!("/campaigns/{}", campaign.name()),
        format!("/campaigns/{campaign}"),
    ] {
        // What was shown a moment ago may still be shown.
        let shown = eventually(SOON, "the claim shows", async || {
            let shown = app.intake.get(&path).await;
            (shown.body["available"] == 9).then_some(shown)
        })
        .await;
        assert_eq!(shown.status.as_u16(), 200, "{shown:?}");
        assert_eq!(shown.headers["cache-control"], "no-store");
        assert_eq!(shown.body["campaign"], campaign.to_string());
        assert_eq!(
            (&shown.body["quantity"], &shown.body["available"]),
            (&10.into(), &9.into())
        );
        assert!(shown.body["opensAt"].is_null());
        let told: Timestamp = shown.body["closesAt"].as_str().unwrap().parse().unwrap();
        assert_eq!(told, closes_at);
        assert_eq!(shown.body["paused"], false);
    }
}

#[tokio::test]
async fn a_campaign_that_is_not_there_or_cannot_be() {
    let app = TestApp::start().await;
    app.intake
        .get("/campaigns/nothing")
        .await
        .assert_problem(404, "CAMPAIGN_NOT_FOUND");
    app.intake
        .get("/campaigns/Not_A_Name")
        .await
        .assert_problem(400, "INVALID_CAMPAIGN");
}

#[tokio::test]
async fn a_missing_state_is_not_a_full_stock() {
    let app = TestApp::start().await;
    let row = app.campaign_without_state(terms()).await;
    app.intake
        .get(&format!("/campaigns/{}", row.name))
        .await
        .assert_problem(503, "REBUILDING");
}

#[tokio::test]
async fn a_page_that_everybody_reloads_asks_redis_a_few_times_a_second() {
    let redis = RedisServer::start().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    on.redis = redis.settings();
    let app = TestApp::on(on.patiently(), |_| {}).await;
    let campaign = app.campaign(10).await;
    let mut raw = redis.connection().await.unwrap();
    let mut scripts_run = async || -> u64 {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut raw)
            .await
            .unwrap();
        let calls = info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
        calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
    };

    let path = format!("/campaigns/{campaign}");
    // What the door saw before there was a state may be shown a while longer.
    eventually(SOON, "the numbers are shown", async || {
        app.intake.get(&path).await.status == 200
    })
    .await;

    let (before, began) = (scripts_run().await, Instant::now());
    let shown = futures::future::join_all((0..500).map(|_| app.intake.get(&path))).await;
    let (ran, periods) = (
        scripts_run().await - before,
        began.elapsed().div_duration_f64(LONGEST_AGE),
    );

    let refused = shown.iter().find(|shown| shown.status != 200);
    assert!(refused.is_none(), "{refused:?}");
    assert!(
        ran as f64 <= periods + 1.0,
        "{ran} scripts for 500 pages in {periods} periods"
    );
}
