//! A worker is cut off in the middle of its work.

use testkit::{eventually::eventually, postgres::PostgresServer, proxy::Proxy, redis::RedisServer};

use crate::{
    chain::{Chain, LIMIT, users},
    records::consumed,
};

/// Its connections to Postgres end while its transaction waits for the campaign's row.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_worker_that_died_before_its_commit_are_persisted_by_the_next_one() {
    let chain = Chain::open(10).await;
    let told = chain.intake().await.burst(users(0..5), 5).await;
    let server = PostgresServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let mut settings = chain.worker_settings();
    settings.postgres.postgres_url = proxy.through(&settings.postgres.postgres_url, server.port());
    let mut other = chain.pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM campaign FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let doomed = chain.worker_with(settings).await;
    eventually(LIMIT, "its transaction has begun", async || {
        chain.waits_for_a_lock("%FROM campaign%FOR UPDATE%").await
    })
    .await;
    proxy.shut().await;
    drop(doomed);
    other.commit().await.unwrap();

    let _worker = chain.worker().await;
    let told: Vec<_> = told.iter().map(|(user, told)| (user.as_str(), told)).collect();
    chain.assert_kept(&told).await;
    chain.settles_with(5).await;
    chain.assert_conserved().await;
}

/// The cancel is in Postgres, and Redis cannot be reached to give the slot to somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_restock_that_redis_did_not_confirm_is_repeated() {
    let chain = Chain::open(1).await;
    let door = chain.intake().await;
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut settings = chain.worker_settings();
    settings.redis = proxy.redis_settings();
    let worker = chain.worker_with(settings).await;
    let told = door.claim("first").await;
    chain.settles_with(1).await;
    consumed(&chain).await;
    proxy.shut().await;
    assert_eq!(door.cancel(told.request.as_deref().unwrap()).await, 200);
    eventually(LIMIT, "the restock is tried", async || {
        worker.metric("coupon_worker_retries_total{kind=\"relay\"}") >= 1.0
    })
    .await;
    assert_eq!(chain.numbers().await.taken, 1);
    proxy.restore();
    eventually(LIMIT, "the slot of the canceled coupon is free", async || {
        chain.numbers().await.taken == 0
    })
    .await;
    assert!(door.claim("second").await.is("SUCCESS"));
    chain.settles_with(1).await;
    chain.assert_conserved().await;
}
