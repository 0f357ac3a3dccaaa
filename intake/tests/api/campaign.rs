//! `GET /campaigns/{name}`.

use campaign::postgres::campaign::CampaignTerms;
use jiff::Timestamp;

use crate::app::{TestApp, terms};

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
        let shown = app.intake.get(&path).await;
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
