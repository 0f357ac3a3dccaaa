//! Coupons against their events.

use coupon::audit::FindingKind::*;

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_projection_lost() {
    let stage = Stage::settled().await;
    stage
        .sql("DELETE FROM coupon_activity WHERE type = 'COUPON_USED'")
        .await;
    stage.assert_finds(&[ActivityMissing, EventNotProjected]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_twice() {
    let stage = Stage::settled().await;
    stage
        .sql(
            "INSERT INTO coupon_activity SELECT gen_random_uuid(), type, coupon_id, campaign_id, campaign, user_id, \
             occurred_at FROM coupon_activity WHERE type = 'COUPON_CANCELED'",
        )
        .await;
    stage.assert_finds(&[ActivityRepeated]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_never_happened() {
    let stage = Stage::settled().await;
    stage
        .sql(
            "INSERT INTO coupon_activity SELECT gen_random_uuid(), 'COUPON_USED', coupon_id, campaign_id, campaign, \
             user_id, occurred_at FROM coupon_activity WHERE user_id = 'user-4'",
        )
        .await;
    stage.assert_finds(&[ActivityUnfounded, ActivityNotPublished]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_waits_in_the_outbox() {
    let stage = Stage::settled().await;
    stage
        .sql(
            "INSERT INTO outbox (type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
             SELECT type, coupon_id, campaign_id, campaign, user_id, occurred_at FROM coupon_activity LIMIT 1",
        )
        .await;
    stage.assert_finds(&[OutboxNotEmpty]).await;
}
