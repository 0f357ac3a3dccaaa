//! The whole chain on each layout of Redis.

use testkit::{
    eventually::eventually, installation::TestInstallation, redis::RedisServer, redis_cluster::RedisCluster,
    redis_sentinel::RedisSentinel,
};

use crate::chain::{Chain, LIMIT, how_many, successes, terms, users};

async fn sells_out(on: TestInstallation) -> Chain {
    let chain = Chain::on(on).await;
    chain.apply(&terms(50)).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let told = door.burst(users(0..200), 100).await;
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (50, 150));
    chain.settles_with(50).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
    let canceled = told.iter().find(|(_, told)| told.is("SUCCESS")).unwrap();
    assert_eq!(door.cancel(canceled.1.request.as_deref().unwrap()).await, 200);
    chain.settles_with(49).await;
    chain
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_sells_out_correctly() {
    let mut on = TestInstallation::start().await.unwrap();
    on.redis = RedisCluster::shared().await.unwrap().settings();
    sells_out(on.patiently()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_sell_out_correctly_and_a_failover_is_survived() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    on.redis = sentinel.settings();
    let chain = sells_out(on).await;
    sentinel.failover().await.unwrap();
    // The new primary may lack writes: the state counts as missing and is rebuilt.
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    eventually(LIMIT, "the one free slot is sold on the new primary", async || {
        door.claim("after-failover").await.is("SUCCESS")
    })
    .await;
    assert!(door.claim("too-late").await.is("SOLD_OUT"));
    chain.settles_with(50).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_cache_that_is_flushed_again_and_again_costs_nothing() {
    // Its own: on the shared one another test may hold the call of a script that has to be known.
    let redis = RedisServer::start().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    on.redis = redis.settings();
    let chain = Chain::on(on.patiently()).await;
    chain.apply(&terms(500)).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let claims = door.burst(users(0..1_000), 100);
    let flushes = async {
        let mut connection = redis.connection().await.unwrap();
        for _ in 0..50 {
            redis::cmd("SCRIPT")
                .arg("FLUSH")
                .exec_async(&mut connection)
                .await
                .unwrap();
            tokio::task::yield_now().await;
        }
    };
    let (told, ()) = tokio::join!(claims, flushes);
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (500, 500));
    chain.settles_with(500).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
}
