//! Claims in Kafka against their outcomes in Postgres.

use coupon::audit::FindingKind::*;

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_coupon_that_vanished_though_its_claim_was_stored() {
    let stage = Stage::settled().await;
    stage.sql("DELETE FROM coupon WHERE user_id = 'user-2'").await;
    stage
        .assert_finds(&[
            ClaimWithoutOutcome,
            MarkerWithoutRow,
            SlotsLeaked,
            IssuedCountWrong,
            ActivityUnfounded,
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumed_record_that_nobody_decided() {
    let stage = Stage::settled().await;
    stage.sql("DELETE FROM batch").await;
    stage.assert_finds(&[RecordUndecided, CouponWithoutBatch]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_batch_and_a_coupon_that_kafka_never_had() {
    let stage = Stage::settled().await;
    stage
        .sql("INSERT INTO batch (campaign_id, batch, outcome) SELECT id, 'abcdefgh-5', 'stored' FROM campaign")
        .await;
    stage.assert_finds(&[BatchWithoutRecord]).await;
    stage
        .sql("UPDATE coupon SET reservation = 'abcdefgh-5.0' WHERE user_id = 'user-7'")
        .await;
    stage.assert_finds(&[BatchWithoutRecord, CouponWithoutClaim]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_waits() {
    let stage = Stage::settled().await;
    let record = stage.reserve(8..9).await;
    stage.publish(&record).await;
    stage
        .assert_finds(&[
            ClaimsNotConsumed,
            ClaimsPending,
            PendingBatchLeft,
            MarkerWithoutRow,
            SlotsLeaked,
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumed_beyond_the_end() {
    let stage = Stage::settled().await;
    stage
        .sql("UPDATE consumed SET next_offset = next_offset + 1000000")
        .await;
    stage.assert_finds(&[ConsumedPastEnd]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_that_cannot_be() {
    let stage = Stage::settled().await;
    stage
        .sql(
            "INSERT INTO rejection (campaign_id, reservation, batch, request_id, user_id, reason) \
             SELECT campaign_id, reservation, split_part(reservation, '.', 1), id, user_id, 'OUT_OF_STOCK' \
             FROM coupon WHERE user_id = 'user-3'",
        )
        .await;
    stage.assert_finds(&[RejectedAndIssued, ImpossibleRejection]).await;
    assert_eq!(stage.audit().await.campaigns[0].revoked, 1);
}
