//! Claims before, after and between: the window and the pause.

use campaign::postgres::campaign::CampaignTerms;
use jiff::{SignedDuration, Timestamp};

use crate::app::{TestApp, terms};

#[tokio::test]
async fn before_it_opens_the_answer_says_when() {
    let app = TestApp::start().await;
    let opens_at = Timestamp::from_second(Timestamp::now().as_second() + 3_600).unwrap();
    let campaign = app
        .campaign_with(CampaignTerms {
            opens_at: Some(opens_at),
            ..terms()
        })
        .await;
    let reply = app.intake.claim(&campaign, "u").await;
    reply.assert_problem(403, "NOT_OPEN_YET");
    let told: Timestamp = reply.body["opensAt"].as_str().unwrap().parse().unwrap();
    assert_eq!(told, opens_at);
    assert_eq!(app.numbers(&campaign).await.taken, 0);
}

#[tokio::test]
async fn after_it_closed_nothing_is_reserved() {
    let app = TestApp::start().await;
    let closes_at = Timestamp::now() - SignedDuration::from_secs(60);
    let campaign = app
        .campaign_with(CampaignTerms {
            closes_at: Some(closes_at),
            ..terms()
        })
        .await;
    app.intake.claim(&campaign, "u").await.assert_problem(403, "CLOSED");
    assert_eq!(app.numbers(&campaign).await.taken, 0);
}

#[tokio::test]
async fn a_paused_campaign_takes_nothing() {
    let app = TestApp::start().await;
    let campaign = app
        .campaign_with(CampaignTerms {
            paused: true,
            ..terms()
        })
        .await;
    app.intake.claim(&campaign, "u").await.assert_problem(403, "PAUSED");
    assert_eq!(app.numbers(&campaign).await.taken, 0);
}
