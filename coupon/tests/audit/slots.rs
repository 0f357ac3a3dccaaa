//! Slots and markers in Redis against rows in Postgres.

use campaign::identity::RequestId;
use coupon::audit::FindingKind::*;

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_marker() {
    let stage = Stage::settled().await;
    stage.redis(&["HDEL", "{users}", "user-3"]).await;
    stage.assert_finds(&[MarkerMissing, OccupiedCountWrong]).await;
    let audit = stage.audit().await;
    let finding = audit
        .findings
        .iter()
        .find(|finding| finding.kind == MarkerMissing)
        .unwrap();
    assert!(finding.ids[0].contains("user-3"), "{finding}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_and_a_marker_that_nobody_holds() {
    let stage = Stage::settled().await;
    let marker = format!("{} abcdefgh-1.0", RequestId::fresh());
    stage.redis(&["HSET", "{users}", "ghost", &marker]).await;
    stage.redis(&["INCR", "{occupied}"]).await;
    stage.assert_finds(&[MarkerWithoutRow, SlotsLeaked]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_below_what_is_issued() {
    let stage = Stage::settled().await;
    stage.redis(&["DECR", "{occupied}"]).await;
    stage.assert_finds(&[SlotsUnaccounted, OccupiedCountWrong]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_of_another_request() {
    let stage = Stage::settled().await;
    let marker = format!("{} abcdefgh-1.0", RequestId::fresh());
    stage.redis(&["HSET", "{users}", "user-4", &marker]).await;
    stage.assert_finds(&[MarkerWrongRequest]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_marked_as_canceled() {
    let stage = Stage::settled().await;
    let marker = format!("{} canceled", stage.coupon_of(5).await);
    stage.redis(&["HSET", "{users}", "user-5", &marker]).await;
    stage.assert_finds(&[MarkerWrongStatus, OccupiedCountWrong]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_left_pending_and_a_pending_count_of_no_batch() {
    let stage = Stage::settled().await;
    stage.redis(&["ZADD", "{pending}", "1", "abcdefgh-9"]).await;
    stage.redis(&["HSET", "{pending-claims}", "abcdefgh-8", "2"]).await;
    stage
        .assert_finds(&[PendingBatchLeft, PendingClaimsOrphaned, PendingSumWrong, KeyWithoutTtl])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_never_expires() {
    let stage = Stage::settled().await;
    stage.redis(&["PERSIST", "{users}"]).await;
    stage.assert_finds(&[KeyWithoutTtl]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_gone() {
    let stage = Stage::settled().await;
    stage.redis(&["DEL", "{meta}"]).await;
    stage.assert_finds(&[StateMissing]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_the_campaign_that_its_rows_deny() {
    let stage = Stage::settled().await;
    stage
        .sql("UPDATE campaign SET issued = issued + 1, parked = 1, epoch = epoch + 1")
        .await;
    stage
        .assert_finds(&[IssuedCountWrong, ParkedCountWrong, EpochDiffers])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_coupons_than_the_quantity() {
    let stage = Stage::settled().await;
    stage
        .sql("ALTER TABLE campaign DROP CONSTRAINT campaign_not_oversold; UPDATE campaign SET quantity = 6")
        .await;
    stage.redis(&["HSET", "{meta}", "quantity", "6"]).await;
    stage.assert_finds(&[Oversold]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_and_a_code_twice() {
    let stage = Stage::settled().await;
    stage
        .sql(
            "ALTER TABLE coupon DROP CONSTRAINT coupon_one_a_user; ALTER TABLE coupon DROP CONSTRAINT coupon_code; \
             INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at) \
             SELECT gen_random_uuid(), campaign_id, user_id, code, reservation, issued_at FROM coupon \
             WHERE user_id = 'user-6'",
        )
        .await;
    let audit = stage.audit().await;
    let found = crate::stage::kinds(&audit);
    for kind in [
        UserTwice,
        CodeTwice,
        SlotsUnaccounted,
        IssuedCountWrong,
        ActivityMissing,
    ] {
        assert!(found.contains(&kind), "{kind}: {audit}");
    }
    assert_eq!(audit.campaigns[0].duplicate_rows, 1);
}
