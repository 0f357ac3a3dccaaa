//! `GET /coupon-issues/{requestId}`.

use std::collections::HashMap;

use crate::app::{TestApp, nobodys_request, user};
use campaign::{identity::RequestId, postgres::batch::Abandon, redis::state::Transition};

#[tokio::test]
async fn pending_until_the_row_is_there_then_issued() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let request = app.intake.claim(&campaign, "u").await.request_id();

    let pending = app.intake.status(&campaign, "u", request).await;
    assert_eq!((pending.status.as_u16(), pending.code()), (200, "PENDING"));
    assert_eq!(pending.request_id(), request);
    assert_eq!(pending.headers["cache-control"], "no-store");
    app.persist(&campaign).await;
    assert_eq!(app.intake.status(&campaign, "u", request).await.code(), "ISSUED");

    // A coupon that was canceled later was issued all the same.
    let canceled = app.intake.post_internal(&format!("/coupons/{request}/cancel")).await;
    assert!(canceled.status.is_success(), "{canceled:?}");
    assert_eq!(app.intake.status(&campaign, "u", request).await.code(), "ISSUED");
}

#[tokio::test]
async fn an_abandoned_claim_is_rejected_as_not_stored() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let row = app.database.campaign(&campaign).await.unwrap().unwrap();
    // What a door that died between the reserve and the publish leaves behind.
    let request = RequestId::fresh();
    let batch = campaign::identity::Instance::random().batch(1);
    let claims = [(user("u"), request)];
    app.state.reserve(&campaign, &batch, &claims).await.unwrap();
    assert_eq!(app.intake.status(&campaign, "u", request).await.code(), "PENDING");

    let topic = app.installation.naming.requests_topic();
    let lost = [(user("u"), request, batch.reservation(0))];
    let abandoned = app
        .database
        .abandon(&topic, row.id, &batch, &lost, &HashMap::new())
        .await
        .unwrap();
    assert_eq!(abandoned, Abandon::Abandoned);
    let held = [(user("u"), batch.reservation(0))];
    assert_eq!(app.state.release(&campaign, &held).await.unwrap(), Transition::Done(1));

    let rejected = app.intake.status(&campaign, "u", request).await;
    assert_eq!(rejected.code(), "REJECTED");
    assert_eq!(rejected.body["reason"], "NOT_STORED");
}

#[tokio::test]
async fn a_request_that_nobody_made_or_somebody_else_is_unknown() {
    let app = TestApp::start().await;
    let (campaign, other) = (app.campaign(10).await, app.campaign(10).await);
    let request = app.intake.claim(&campaign, "u").await.request_id();

    for persisted in [false, true] {
        if persisted {
            app.persist(&campaign).await;
        }
        for (campaign, user, request) in [
            (&campaign, "u", nobodys_request()),
            (&campaign, "v", request),
            (&other, "u", request),
        ] {
            app.intake
                .status(campaign, user, request)
                .await
                .assert_problem(404, "UNKNOWN_REQUEST");
        }
    }
}

#[tokio::test]
async fn without_a_state_nothing_is_said_to_be_unknown() {
    let app = TestApp::start().await;
    let row = app.campaign_without_state(crate::app::terms()).await;
    app.intake
        .status(&row.name, "u", nobodys_request())
        .await
        .assert_problem(503, "STATE_UNAVAILABLE");
}
