//! Names that no campaign has cost no query each.

use std::time::Duration;

use serde_json::json;
use testkit::{
    eventually::eventually,
    installation::TestInstallation,
    postgres::PostgresServer,
    proxy::{Proxy, Treatment},
};

use crate::app::{SOON, TestApp};

#[tokio::test]
async fn thousands_of_names_and_known_ones_are_answered_without_postgres() {
    let postgres = PostgresServer::shared().await.unwrap();
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let app = TestApp::start_with(|settings| {
        settings.postgres.postgres_url = proxy.through(&settings.postgres.postgres_url, postgres.port());
    })
    .await;
    let campaign = app.campaign(10).await;

    // Nothing comes through: whoever asks Postgres hangs.
    let slow = TestApp::on(app.installation.clone(), |settings| {
        settings.postgres.postgres_url = proxy.through(&settings.postgres.postgres_url, postgres.port());
        settings.door.campaign_refresh = Duration::from_secs(3_600);
    })
    .await;
    proxy.requests(Treatment::Hold);
    let all = async {
        for i in 0..2_000 {
            let body = json!({"campaign": format!("nothing-{i}"), "userId": "u"});
            slow.intake
                .claim_body(&body, None)
                .await
                .assert_problem(404, "CAMPAIGN_NOT_FOUND");
        }
        assert_eq!(slow.intake.claim(&campaign, "u").await.code(), "SUCCESS");
    };
    tokio::time::timeout(SOON, all)
        .await
        .expect("an unknown name waits for Postgres");

    // Where the names cannot be read again, an unknown one may exist, and known ones are served.
    eventually(SOON, "the refresh has failed", async || {
        let body = json!({"campaign": "nothing", "userId": "u"});
        app.intake.claim_body(&body, None).await.code() == "STATE_UNAVAILABLE"
    })
    .await;
    assert_eq!(app.intake.claim(&campaign, "v").await.code(), "SUCCESS");
}

#[tokio::test]
async fn a_new_campaign_is_found_by_the_first_claim_after_a_period() {
    let app = TestApp::on(TestInstallation::start().await.unwrap(), |_| {}).await;
    // Knows of it only by being asked.
    let campaign = app.campaign(1).await;
    assert_eq!(app.intake.claim(&campaign, "u").await.code(), "SUCCESS");
}
