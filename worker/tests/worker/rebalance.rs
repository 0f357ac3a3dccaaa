//! Workers come and go.

use testkit::eventually::eventually;

use crate::fixture::{LIMIT, Sale};

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_come_and_go_repeat_nothing() {
    let sale = Sale::start(10_000).await;
    let mut settings = sale.settings();
    // Many transactions, so that the rebalances fall among them.
    settings.tuning.batch_claims = 50;
    settings.postgres.postgres_pool = 6;
    let first = crate::fixture::TestWorker::start(settings.clone()).await;
    let mut records = sale.claim_in_records_of(5, 2_000).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(crate::fixture::TestWorker::start(settings.clone()).await);
        records.extend(sale.claim_in_records_of(5, 1_000).await);
    }
    for other in others {
        records.extend(sale.claim_in_records_of(5, 1_000).await);
        other.stop().await;
    }
    sale.issued_are(&records).await;
    sale.settled().await;
    eventually(LIMIT, "every coupon has its event", async || {
        sale.number("SELECT count(*) FROM coupon_activity WHERE campaign_id = $1 AND type = 'COUPON_ISSUED'")
            .await
            == 10_000
    })
    .await;
    assert_eq!(sale.row().await.issued, 10_000);
    first.stop().await;
}

/// What was committed before the stop is settled; what was not is read by the next worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_leaves_nothing_half_done() {
    let sale = Sale::start(2_000).await;
    let mut settings = sale.settings();
    settings.tuning.batch_claims = 50;
    // Nobody else settles.
    settings.tuning.sweep_interval = LIMIT * 10;
    let records = sale.claim_in_records_of(5, 2_000).await;
    let worker = crate::fixture::TestWorker::start(settings.clone()).await;
    eventually(LIMIT, "it is under way", async || !sale.issued().await.is_empty()).await;
    worker.stop().await;
    let numbers = sale.numbers().await;
    let issued = sale.issued().await.len() as i64;
    assert_eq!(numbers.pending, 2_000 - issued, "what was committed is settled");
    let _next = crate::fixture::TestWorker::start(settings).await;
    sale.issued_are(&records).await;
    sale.settled().await;
}
