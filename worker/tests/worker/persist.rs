//! From records to rows.

use campaign::{identity::Epoch, postgres::coupon::CouponStatus};
use testkit::eventually::eventually;

use crate::fixture::{LIMIT, Sale, requests};

#[tokio::test(flavor = "multi_thread")]
async fn every_claim_becomes_one_row_and_one_event_and_is_settled() {
    let sale = Sale::start(1_000).await;
    let records = sale.claim(700).await;
    let worker = sale.worker().await;
    sale.issued_are(&records).await;
    sale.settled().await;
    eventually(LIMIT, "the projection has every event", async || {
        sale.number("SELECT count(*) FROM coupon_activity WHERE campaign_id = $1 AND type = 'COUPON_ISSUED'")
            .await
            == 700
    })
    .await;
    eventually(LIMIT, "the outbox is empty", async || {
        sale.database.outbox_len().await.unwrap() == 0
    })
    .await;
    assert_eq!(worker.metric("coupon_worker_coupons_issued_total"), 700.0);
    assert_eq!(worker.metric("coupon_worker_claims_persisted_total"), 700.0);
    for reason in ["OUT_OF_STOCK", "ALREADY_ISSUED", "STALE_EPOCH"] {
        let name = format!("coupon_worker_success_revoked_total{{reason=\"{reason}\"}}");
        assert_eq!(worker.metric(&name), 0.0);
    }
    worker.stop().await;
}

/// A claim is judged by when it was accepted, not by when it is read.
#[tokio::test(flavor = "multi_thread")]
async fn claims_accepted_before_the_close_are_issued_after_it() {
    let sale = Sale::start(100).await;
    let records = sale.claim(10).await;
    let row = sale.row().await;
    let mut closed = row.terms.clone();
    closed.closes_at = Some(jiff::Timestamp::now() - jiff::SignedDuration::from_secs(10));
    sale.database
        .set_terms(row.id, &closed, row.revision, row.revision + 1, None)
        .await
        .unwrap();
    let _worker = sale.worker().await;
    sale.issued_are(&records).await;
}

/// What cannot happen while the rules hold is caught and told all the same.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_nobody_reserved_never_take_a_campaign_over_its_quantity() {
    let sale = Sale::start(5).await;
    let users = sale.users(8);
    sale.publish(&sale.forged(&users)).await;
    let worker = sale.worker().await;
    sale.consumed_all().await;
    assert_eq!(sale.issued().await.len(), 5);
    eventually(LIMIT, "three are told", async || {
        worker.metric("coupon_worker_success_revoked_total{reason=\"OUT_OF_STOCK\"}") == 3.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_holds_a_coupon_gets_no_second_one() {
    let sale = Sale::start(5).await;
    let users = sale.users(1);
    let record = sale.reserve(&users).await;
    sale.publish(&record).await;
    let worker = sale.worker().await;
    sale.settled().await;
    sale.publish(&sale.forged(&users)).await;
    sale.consumed_all().await;
    assert_eq!(sale.issued().await, requests(&[record]));
    assert!(sale.holds(&users[0]).await, "the holder's marker stays");
    eventually(LIMIT, "it is told", async || {
        worker.metric("coupon_worker_success_revoked_total{reason=\"ALREADY_ISSUED\"}") == 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_an_archived_campaign_are_rejected() {
    let sale = Sale::start(5).await;
    sale.claim(3).await;
    sale.database
        .archive_campaign(sale.campaign.id, sale.campaign.revision)
        .await
        .unwrap();
    let worker = sale.worker().await;
    sale.consumed_all().await;
    assert!(sale.issued().await.is_empty());
    eventually(LIMIT, "they are told", async || {
        worker.metric("coupon_worker_success_revoked_total{reason=\"CAMPAIGN_GONE\"}") == 3.0
    })
    .await;
}

/// A record that came after the cut of a later epoch was told to nobody.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_an_ended_epoch_are_stale_only_past_its_cut() {
    let sale = Sale::start(10).await;
    let before = sale.claim_in_records_of(1, 2).await;
    let topic = sale.installation.naming.requests_topic();
    let marks = sale.reader.watermarks(&topic).await.unwrap();
    let later = sale
        .database
        .raise_epoch(sale.campaign.id)
        .await
        .unwrap()
        .unwrap()
        .epoch;
    assert!(later > sale.epoch && later > Epoch(0));
    for (partition, marks) in marks {
        sqlx::query("INSERT INTO epoch_cut (campaign_id, epoch, partition, end_offset) VALUES ($1, $2, $3, $4)")
            .bind(sale.campaign.id.0)
            .bind(later.0)
            .bind(partition)
            .bind(marks.high)
            .execute(&sale.pool)
            .await
            .unwrap();
    }
    sale.claim_in_records_of(1, 2).await;
    let worker = sale.worker().await;
    sale.consumed_all().await;
    assert_eq!(sale.issued().await, requests(&before));
    eventually(LIMIT, "they are told", async || {
        worker.metric("coupon_worker_success_revoked_total{reason=\"STALE_EPOCH\"}") == 2.0
    })
    .await;
    eventually(LIMIT, "their slots are free", async || sale.numbers().await.taken == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_record_twice_is_one_decision() {
    let sale = Sale::start(10).await;
    let record = sale.reserve(&sale.users(3)).await;
    for _ in 0..5 {
        sale.publish(&record).await;
    }
    let worker = sale.worker().await;
    sale.issued_are(std::slice::from_ref(&record)).await;
    sale.settled().await;
    eventually(LIMIT, "the repeats are told apart", async || {
        worker.metric("coupon_worker_coupons_issued_total") == 3.0
    })
    .await;
    for claim in &record.claims {
        let coupon = sale.database.coupon(claim.request_id).await.unwrap().unwrap();
        assert_eq!(coupon.status, CouponStatus::Issued);
        assert_eq!(coupon.user, claim.user_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_internal_port_tells_how_it_is() {
    let sale = Sale::start(1).await;
    let worker = sale.worker().await;
    assert_eq!(worker.get("/livez").await.0, 200);
    eventually(LIMIT, "ready", async || worker.get("/readyz").await.0 == 200).await;
    let (status, text) = worker.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("coupon_worker_success_revoked_total{reason=\"OUT_OF_STOCK\"} 0"),
        "{text}"
    );
    assert_eq!(worker.get("/unknown").await.0, 404);
}
