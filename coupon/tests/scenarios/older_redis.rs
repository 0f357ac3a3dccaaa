//! Redis comes back with less than it had acknowledged.

use testkit::{
    installation::TestInstallation,
    redis::{RedisServer, RestartWith},
};

use crate::chain::{Chain, at_once, how_many, successes, terms, users};

/// The last ten that were accepted are in Kafka only: no row, and no longer in Redis.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_found_and_everybody_who_was_accepted_is_honoured() {
    let mut redis = RedisServer::start().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    on.redis = redis.settings();
    let chain = Chain::on(on).await;
    chain.apply(&terms(100)).await;
    let door = chain.intake().await;
    let worker = chain.worker().await;
    let mut told = door.burst(users(0..40), 20).await;
    chain.settles_with(40).await;
    worker.stop().await;
    let older = redis.snapshot().await.unwrap();
    told.extend(door.burst(users(40..50), 10).await);
    assert_eq!(how_many(&told, "SUCCESS"), 50);

    redis.restart(RestartWith::Snapshot(&older)).await.unwrap();
    let late = at_once(100, |i| {
        let door = &door;
        async move {
            let user = format!("late-{i}");
            let told = door.claim_until_answered(&user).await;
            (user, told)
        }
    });
    told.extend(late.await);
    let _worker = chain.worker().await;
    let everybody: Vec<_> = told.iter().map(|(user, told)| (user.as_str(), told)).collect();
    chain.assert_kept(&everybody).await;
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (100, 50));
    chain.settles_with(100).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
    let lives = "SELECT count(DISTINCT epoch) FROM epoch_cut";
    assert_eq!(chain.count(lives).await, 2, "found once and rebuilt once");
}
