//! Locks that are held, lost or stolen.

use std::time::Duration;

use testkit::eventually::eventually;
use tokio_util::sync::CancellationToken;

use crate::fixture::{LIMIT, Sale, terms};

/// One stalled campaign does not stall the others, and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn others_pass_a_campaign_whose_lock_is_held() {
    let stalled = Sale::start(1_000).await;
    let free = stalled.beside(terms(1_000)).await;
    let key = stalled.installation.naming.issue_lock(&stalled.campaign.name);
    let held = stalled
        .locks
        .try_acquire(&key, Duration::from_secs(30), 0)
        .await
        .unwrap()
        .unwrap();
    // Small records, in turns: every partition has some of both, the stalled campaign's first.
    let mut of_stalled = Vec::new();
    let mut of_free = Vec::new();
    for _ in 0..20 {
        of_stalled.extend(stalled.claim_in_records_of(5, 50).await);
        of_free.extend(free.claim_in_records_of(5, 50).await);
    }
    let _worker = stalled.worker().await;
    free.issued_are(&of_free).await;
    eventually(LIMIT, "nothing of it is pending", async || {
        free.numbers().await.pending == 0
    })
    .await;
    assert!(stalled.issued().await.is_empty(), "its lock is held");
    held.release().await.unwrap();
    stalled.issued_are(&of_stalled).await;
    stalled.settled().await;
    free.settled().await;
}

/// The lock is taken from its holder again and again while slow transactions run in two workers: the database's guard
/// holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_before_the_commit_oversells_nothing() {
    let sale = Sale::start(300).await;
    sale.execute(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$; \
         CREATE TRIGGER slowly AFTER INSERT ON coupon FOR EACH STATEMENT EXECUTE FUNCTION slowly()",
    )
    .await;
    let mut settings = sale.settings();
    settings.tuning.batch_claims = 50;
    let workers = [
        crate::fixture::TestWorker::start(settings.clone()).await,
        crate::fixture::TestWorker::start(settings).await,
    ];
    let thief = CancellationToken::new();
    let stealing = tokio::spawn({
        let key = sale.installation.naming.issue_lock(&sale.campaign.name);
        let url = sale.installation.redis.redis_urls[0].clone();
        let thief = thief.clone();
        async move {
            let mut connection = redis::Client::open(url)
                .unwrap()
                .get_multiplexed_async_connection()
                .await
                .unwrap();
            let mut stolen = 0;
            while !thief.is_cancelled() {
                stolen += redis::cmd("DEL")
                    .arg(&key)
                    .query_async::<u64>(&mut connection)
                    .await
                    .unwrap();
                tokio::task::yield_now().await;
            }
            stolen
        }
    });
    let records = sale.claim_in_records_of(10, 300).await;
    sale.issued_are(&records).await;
    thief.cancel();
    assert!(stealing.await.unwrap() > 0, "nothing was stolen");
    sale.settled().await;
    assert_eq!(sale.row().await.issued, 300);
    eventually(LIMIT, "each is counted once", async || {
        let issued = workers
            .iter()
            .map(|worker| worker.metric("coupon_worker_coupons_issued_total"));
        issued.sum::<f64>() == 300.0
    })
    .await;
}
