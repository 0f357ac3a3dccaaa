//! The lock: one owner at a time, tokens that only grow, and an owner who learns that it is lost.

use std::time::Duration;

use campaign::redis::{connection::Redis, lock::Locks};
use testkit::{eventually::eventually, redis::RedisServer};
use uuid::Uuid;

use crate::fixture::raw;

const LEASE: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(60);

async fn locks() -> (Locks, String) {
    let settings = RedisServer::shared().await.unwrap().settings();
    let redis = Redis::connect(&settings).await.unwrap();
    (Locks::new(redis), format!("test:lock:{{{}}}", Uuid::new_v4()))
}

#[tokio::test]
async fn one_owner_at_a_time() {
    let (locks, key) = locks().await;
    let first = locks.try_acquire(&key, LEASE, 0).await.unwrap().expect("free");
    assert!(first.is_held());
    assert!(locks.try_acquire(&key, LEASE, 0).await.unwrap().is_none());
    let waited = locks.acquire(&key, LEASE, 0, Duration::from_millis(100)).await.unwrap();
    assert!(waited.is_none());

    let (second, released) = tokio::join!(locks.acquire(&key, LEASE, 0, SOON), async {
        let token = first.token();
        first.release().await.unwrap();
        token
    });
    let second = second.unwrap().expect("released");
    assert!(second.token() > released);
}

#[tokio::test]
async fn tokens_grow_past_the_floor_and_over_a_flush() {
    let mut server = RedisServer::start().await.unwrap();
    let locks = Locks::new(Redis::connect(&server.settings()).await.unwrap());
    let key = "test:lock:{a}";
    let far = i64::pow(2, 52);
    let mut last = 0;
    for floor in [0, far, 0] {
        let held = locks.try_acquire(key, LEASE, floor).await.unwrap().expect("free");
        assert!(held.token() > last && held.token() > floor);
        last = held.token();
        held.release().await.unwrap();
    }
    server.restart(testkit::redis::RestartWith::Nothing).await.unwrap();
    // All that Redis knew is gone; the floor, kept in Postgres, is not.
    let held = eventually(SOON, "the lock is taken", async || {
        locks.try_acquire(key, LEASE, last).await
    })
    .await;
    assert!(held.token() > last);
}

#[tokio::test]
async fn a_lock_is_renewed_past_its_lease() {
    let (locks, key) = locks().await;
    let held = locks
        .try_acquire(&key, Duration::from_secs(30), 0)
        .await
        .unwrap()
        .expect("free");
    let mut raw = raw().await;
    let mut life = async || -> i64 { redis::cmd("PTTL").arg(&key).query_async(&mut raw).await.unwrap() };
    let mut before = life().await;
    eventually(SOON, "it lives longer than it did", async || {
        let now = life().await;
        let renewed = now > before;
        before = now;
        renewed
    })
    .await;
    assert!(held.is_held());
    assert!(locks.try_acquire(&key, LEASE, 0).await.unwrap().is_none());
}

#[tokio::test]
async fn an_owner_learns_that_its_key_is_gone() {
    let (locks, key) = locks().await;
    let lease = Duration::from_millis(900);
    let held = locks.try_acquire(&key, lease, 0).await.unwrap().expect("free");
    redis::cmd("DEL").arg(&key).exec_async(&mut raw().await).await.unwrap();
    let other = locks.try_acquire(&key, LEASE, 0).await.unwrap().expect("free");
    tokio::time::timeout(SOON, held.lost()).await.expect("told");
    assert!(!held.is_held());

    held.release().await.unwrap();
    assert!(
        locks.try_acquire(&key, LEASE, 0).await.unwrap().is_none(),
        "another's lock is not released"
    );
    drop(other);
}

#[tokio::test]
async fn an_owner_that_cannot_renew_has_lost_it_when_the_lease_is_over() {
    let server = RedisServer::start().await.unwrap();
    let locks = Locks::new(Redis::connect(&server.settings()).await.unwrap());
    let lease = Duration::from_millis(600);
    let held = locks
        .try_acquire("test:lock:{a}", lease, 0)
        .await
        .unwrap()
        .expect("free");
    server.freeze().unwrap();
    tokio::time::timeout(SOON, held.lost()).await.expect("told");
    assert!(!held.is_held());
    server.thaw().unwrap();
}

#[tokio::test]
async fn a_dropped_lock_is_free_after_its_lease() {
    let (locks, key) = locks().await;
    drop(
        locks
            .try_acquire(&key, Duration::from_millis(300), 0)
            .await
            .unwrap()
            .expect("free"),
    );
    let next = locks.acquire(&key, LEASE, 0, SOON).await.unwrap();
    assert!(next.is_some());
}
