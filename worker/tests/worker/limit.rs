//! The processing limit of the installation.

use campaign::redis::limit::ProcessingLimit;
use testkit::eventually::eventually;

use crate::fixture::{LIMIT, Sale};

/// Permits come in part: records wait for theirs, and a raised rate holds at once.
#[tokio::test(flavor = "multi_thread")]
async fn claims_wait_for_their_permits_and_none_is_lost() {
    let sale = Sale::start(1_000).await;
    let limit = ProcessingLimit::new(sale.redis.clone(), &sale.installation.naming, 0);
    // A record of 50 claims needs the permits of ten seconds: it would wait past the limit of this test if a raised
    // rate did not hold.
    limit.set_rate(5).await.unwrap();
    let records = sale.claim_in_records_of(50, 1_000).await;
    let worker = sale.worker().await;
    eventually(LIMIT, "the worker has read them", async || {
        worker.metric("coupon_worker_backlog_claims") == 1_000.0
    })
    .await;
    assert!(sale.issued().await.len() < 1_000);
    limit.set_rate(2_000).await.unwrap();
    sale.issued_are(&records).await;
    sale.settled().await;
}
