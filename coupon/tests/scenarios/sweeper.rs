//! The sweeper by itself: what it may abandon, and when.

use std::time::{Duration, Instant};

use campaign::{align::Aligner, redis::lock::Held};
use testkit::{
    eventually::eventually,
    installation::TestInstallation,
    kafka::KafkaServer,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};
use worker::{metrics::Metrics, sweeper::Sweeper};

use crate::{
    chain::{Chain, LIMIT, aligner, terms, users},
    records::{consumed, grown_old, publish, reserve},
};

/// A sweeper without a worker, to sweep once, that reaches the servers through `by`; its lock is the chain's.
pub async fn sweeper(chain: &Chain, by: &Aligner) -> (Sweeper, Held) {
    let on = &chain.on;
    let sweeper = Sweeper {
        database: by.database.clone(),
        state: by.state.clone(),
        locks: chain.aligner.rebuilder.locks.clone(),
        reader: by.rebuilder.reader.clone(),
        naming: on.naming.clone(),
        settle_after: on.installation.settle_after(),
        interval: LIMIT,
        metrics: Metrics::new(),
    };
    let key = on.naming.sweeper_lock();
    let held = sweeper.locks.try_acquire(&key, LIMIT, 0).await.unwrap().unwrap();
    (sweeper, held)
}

/// Through this proxy before Redis, as patient as it takes.
pub async fn behind(proxy: &Proxy, chain: &Chain) -> Aligner {
    let mut on = chain.on.clone();
    on.redis = proxy.redis_settings();
    on.redis.redis_timeout = LIMIT;
    aligner(&on).await.1
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_wait_for_a_worker_are_left_to_it() {
    let chain = Chain::open(10).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..3), 3).await;
    grown_old(&chain).await;
    let (sweeper, held) = sweeper(&chain, &chain.aligner).await;
    let swept = sweeper.sweep(&held).await.unwrap();
    held.release().await.unwrap();
    let _worker = chain.worker().await;
    let told: Vec<_> = told.iter().map(|(user, told)| (user.as_str(), told)).collect();
    chain.assert_kept(&told).await;
    assert!(swept.left > 0 && swept.abandoned == 0, "{swept:?}");
    chain.settles_with(3).await;
    chain.assert_conserved().await;
}

/// The sweep is held up before it looks at Redis; meanwhile a claim is acknowledged late in its time and grows old.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_acknowledged_while_a_sweep_is_held_up_is_left_to_the_worker() {
    let mut on = TestInstallation::start().await.unwrap();
    on.installation.publish_timeout = Duration::from_secs(20);
    let chain = Chain::on(on).await;
    chain.apply(&terms(1)).await;
    let kafka = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut settings = chain.intake_settings();
    settings.kafka = kafka.kafka_settings();
    let door = chain.intake_with(settings).await;
    let redis = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let (sweeper, held) = sweeper(&chain, &behind(&redis, &chain).await).await;

    kafka.requests(Treatment::Hold);
    let moments = async {
        eventually(LIMIT, "it is reserved", async || chain.numbers().await.taken == 1).await;
        redis.requests(Treatment::Hold);
        let since = Instant::now();
        let late = async {
            eventually(LIMIT, "late in its time", async || {
                since.elapsed() > Duration::from_secs(10)
            })
            .await;
            kafka.restore();
            grown_old(&chain).await;
            redis.restore();
        };
        tokio::join!(sweeper.sweep(&held), late).0.unwrap()
    };
    let (told, swept) = tokio::join!(door.claim("user"), moments);
    assert!(told.is("SUCCESS"), "{told:?}");
    held.release().await.unwrap();
    let _worker = chain.worker().await;
    chain.assert_kept(&[("user", &told)]).await;
    assert_eq!((swept.left, swept.abandoned), (1, 0));
    chain.settles_with(1).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_comes_after_its_batch_was_abandoned_changes_nothing() {
    let chain = Chain::open(1).await;
    let _worker = chain.worker().await;
    let lost = reserve(&chain, &["dead"]).await;
    eventually(LIMIT, "it is swept", async || chain.numbers().await.taken == 0).await;
    publish(&chain, &lost).await;
    consumed(&chain).await;
    let told = chain.intake().await.claim("other").await;
    assert!(told.is("SUCCESS"), "{told:?}");
    chain.assert_kept(&[("other", &told)]).await;
    chain.settles_with(1).await;
    chain.assert_conserved().await;
}

/// The door hears late that it has reserved; its claim is swept by then, and its user has come again elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_is_given_back_late_frees_nobody_elses_slot() {
    let chain = Chain::open(1).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut settings = chain.intake_settings();
    settings.redis = proxy.redis_settings();
    settings.redis.redis_timeout = LIMIT;
    let slow = chain.intake_with(settings).await;
    chain.load_reserve().await;
    proxy.replies(Treatment::Hold);
    let again = async {
        eventually(LIMIT, "it is reserved", async || chain.numbers().await.taken == 1).await;
        eventually(LIMIT, "it is swept", async || chain.numbers().await.taken == 0).await;
        let told = door.claim("user").await;
        chain.settles_with(1).await;
        proxy.restore();
        told
    };
    let (late, told) = tokio::join!(slow.claim("user"), again);
    assert!(late.is("COUPON_ISSUE_KAFKA_ERROR"), "{late:?}");
    assert!(told.is("SUCCESS"), "{told:?}");
    let other = door.claim("other").await;
    chain.assert_kept(&[("user", &told), ("other", &other)]).await;
    assert!(other.is("SOLD_OUT"), "{other:?}");
    chain.assert_conserved().await;
}

/// Redis is lost between the two steps that end a batch: the next sweep does both again.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_is_cut_short_is_finished_by_the_next_one() {
    let chain = Chain::open(1).await;
    reserve(&chain, &["dead"]).await;
    grown_old(&chain).await;
    let redis = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let (sweeper, held) = sweeper(&chain, &behind(&redis, &chain).await).await;
    redis.requests(Treatment::Hold);
    let cut = async {
        redis
            .step_until(LIMIT, "the first of the two steps is done", async || {
                let pending = chain
                    .state
                    .expired_batches(&chain.campaign, 0, 1)
                    .await
                    .unwrap()
                    .unwrap();
                chain.numbers().await.taken == 0 || pending.is_empty()
            })
            .await;
        redis.refuse();
    };
    let (swept, ()) = tokio::join!(sweeper.sweep(&held), cut);
    assert_eq!(swept.unwrap().failed, 1);
    held.release().await.unwrap();

    let _worker = chain.worker().await;
    eventually(LIMIT, "it is settled", async || chain.numbers().await.pending == 0).await;
    assert_eq!(
        chain.numbers().await.taken,
        0,
        "a slot leaks: nobody has it, and it is not free"
    );
    let told = chain.intake().await.claim("other").await;
    assert!(told.is("SUCCESS"), "{told:?}");
    chain.settles_with(1).await;
    chain.assert_conserved().await;
}
