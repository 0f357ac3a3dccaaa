//! The internal calls on coupons.

use std::time::Duration;

use campaign::postgres::campaign::CampaignTerms;
use serde_json::json;
use testkit::eventually::eventually;

use crate::app::{SOON, TestApp, nobodys_request, terms};

#[tokio::test]
async fn a_users_coupons_in_pages() {
    let app = TestApp::start().await;
    let mut issued = Vec::new();
    for _ in 0..5 {
        let campaign = app.campaign(1).await;
        issued.push(app.intake.claim(&campaign, "u&1").await.request_id().to_string());
        app.persist(&campaign).await;
    }
    issued.reverse();

    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = app
            .intake
            .get_internal(&format!("/coupons?userId=u%261&limit=2{cursor}"))
            .await;
        assert_eq!(page.status.as_u16(), 200, "{page:?}");
        let coupons = page.body["coupons"].as_array().unwrap();
        assert!(coupons.len() <= 2);
        for coupon in coupons {
            assert_eq!(
                (&coupon["status"], &coupon["userId"]),
                (&"ISSUED".into(), &"u&1".into())
            );
            seen.push(coupon["id"].as_str().unwrap().to_owned());
        }
        match page.body["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, issued, "newest first, each once");

    let nobody = app.intake.get_internal("/coupons?userId=nobody").await;
    assert_eq!(nobody.body["coupons"].as_array().unwrap().len(), 0);
    for bad in [
        "/coupons",
        "/coupons?userId=u&limit=0",
        "/coupons?userId=u&cursor=x",
        "/coupons?userId=u&x=1",
    ] {
        app.intake.get_internal(bad).await.assert_problem(400, "INVALID_QUERY");
    }
}

#[tokio::test]
async fn a_coupon_tells_what_it_is_worth_and_its_campaigns_metadata() {
    let app = TestApp::start().await;
    let details = json!({"discount": {"type": "Percentage", "value": 20}, "metadata": {"channel": "web"}});
    let worth = app
        .campaign_with(CampaignTerms {
            details: details.clone(),
            quantity: 1,
            ..terms()
        })
        .await;
    let plain = app.campaign(1).await;
    for campaign in [&plain, &worth] {
        app.intake.claim(campaign, "u").await.request_id();
        app.persist(campaign).await;
    }
    let page = app.intake.get_internal("/coupons?userId=u").await;
    let coupons = &page.body["coupons"];
    assert_eq!(coupons[0]["discount"], details["discount"], "{coupons}");
    assert_eq!(coupons[0]["metadata"], details["metadata"], "{coupons}");
    assert!(coupons[1].get("discount").is_none(), "{coupons}");
    assert_eq!(coupons[1]["metadata"], json!({}), "{coupons}");

    let path = format!("/coupons/{}/use", coupons[0]["id"].as_str().unwrap());
    let used = app.intake.post_internal(&path).await;
    assert_eq!(used.body["discount"], details["discount"], "{used:?}");
}

#[tokio::test]
async fn a_coupon_is_used_once_by_id_or_by_code() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let by_id = app.intake.claim(&campaign, "u").await.request_id();
    let by_code = app.intake.claim(&campaign, "v").await.request_id();
    app.persist(&campaign).await;

    let used = app.intake.post_internal(&format!("/coupons/{by_id}/use")).await;
    assert_eq!(used.status.as_u16(), 200, "{used:?}");
    assert_eq!(used.body["status"], "USED");
    assert!(used.body["usedAt"].is_string());

    let code = app.database.coupon(by_code).await.unwrap().unwrap().code;
    let used = app.intake.post_internal(&format!("/coupons/by-code/{code}/use")).await;
    assert_eq!(used.status.as_u16(), 200, "{used:?}");
    assert_eq!(used.body["status"], "USED");

    for path in [
        format!("/coupons/{by_id}/use"),
        format!("/coupons/by-code/{code}/use"),
        format!("/coupons/{by_id}/cancel"),
    ] {
        app.intake
            .post_internal(&path)
            .await
            .assert_problem(409, "ALREADY_USED");
    }
}

#[tokio::test]
async fn a_canceled_coupon_stays_canceled() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let id = app.intake.claim(&campaign, "u").await.request_id();
    app.persist(&campaign).await;

    let canceled = app.intake.post_internal(&format!("/coupons/{id}/cancel")).await;
    assert_eq!(canceled.status.as_u16(), 200, "{canceled:?}");
    assert_eq!(canceled.body["status"], "CANCELED");
    for path in [format!("/coupons/{id}/use"), format!("/coupons/{id}/cancel")] {
        app.intake
            .post_internal(&path)
            .await
            .assert_problem(409, "ALREADY_CANCELED");
    }
    // The restock is the relay's.
    assert_eq!(app.numbers(&campaign).await.taken, 1);
}

#[tokio::test]
async fn past_its_validity_it_is_neither_used_nor_canceled() {
    let app = TestApp::start().await;
    let campaign = app
        .campaign_with(CampaignTerms {
            valid_for_ms: Some(1),
            ..terms()
        })
        .await;
    let id = app.intake.claim(&campaign, "u").await.request_id();
    app.persist(&campaign).await;
    let valid_until = app.database.coupon(id).await.unwrap().unwrap().valid_until.unwrap();
    eventually(SOON, "it has expired", async || {
        jiff::Timestamp::now() > valid_until + Duration::from_millis(1)
    })
    .await;
    for path in [format!("/coupons/{id}/use"), format!("/coupons/{id}/cancel")] {
        app.intake.post_internal(&path).await.assert_problem(409, "EXPIRED");
    }
}

#[tokio::test]
async fn coupons_that_are_not_there() {
    let app = TestApp::start().await;
    let id = nobodys_request();
    for path in [
        format!("/coupons/{id}/use"),
        format!("/coupons/{id}/cancel"),
        "/coupons/by-code/NOTHING/use".to_owned(),
        "/coupons/by-code/%00/use".to_owned(),
    ] {
        app.intake
            .post_internal(&path)
            .await
            .assert_problem(404, "COUPON_NOT_FOUND");
    }
    app.intake
        .post_internal("/coupons/x/use")
        .await
        .assert_problem(400, "INVALID_COUPON_ID");
}

#[tokio::test]
async fn the_public_port_has_none_of_it() {
    let app = TestApp::start().await;
    app.intake
        .get("/coupons?userId=u")
        .await
        .assert_problem(404, "NOT_FOUND");
    app.intake.get("/metrics").await.assert_problem(404, "NOT_FOUND");
}
