//! The processing limit: no second gives more than the rate, whatever is set and how often.

use std::time::{Duration, Instant};

use campaign::{
    naming::Naming,
    redis::{connection::Redis, limit::ProcessingLimit},
};
use testkit::{eventually::eventually, redis::RedisServer};
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);

async fn limit(rate: u32) -> ProcessingLimit {
    let settings = RedisServer::shared().await.unwrap().settings();
    let redis = Redis::connect(&settings).await.unwrap();
    let prefix = format!("t{}", &Uuid::new_v4().simple().to_string()[..12]);
    ProcessingLimit::new(redis, &Naming::new(&prefix).unwrap(), rate)
}

/// Permits that were given between two moments.
struct Grant {
    asked: Instant,
    answered: Instant,
    permits: u32,
}

async fn take(limit: &ProcessingLimit, wanted: u32) -> Grant {
    let asked = Instant::now();
    let granted = limit.acquire(wanted).await.unwrap();
    assert!(granted.permits <= wanted);
    assert_eq!(granted.permits < wanted, !granted.retry_after.is_zero());
    Grant {
        asked,
        answered: Instant::now(),
        permits: granted.permits,
    }
}

/// The most permits that surely lie within one second: asked for in it and answered in it.
fn most_in_a_second(grants: &[Grant]) -> u32 {
    let within = |start: Instant| {
        let end = start + SECOND;
        let inside = grants
            .iter()
            .filter(|grant| grant.asked >= start && grant.answered < end);
        inside.map(|grant| grant.permits).sum()
    };
    grants.iter().map(|grant| within(grant.asked)).max().unwrap_or(0)
}

/// Workers that ask for as much as they can get for so long.
async fn run(limit: &ProcessingLimit, workers: u32, duration: Duration) -> Vec<Grant> {
    let end = Instant::now() + duration;
    let worker = |n: u32| async move {
        let mut grants = Vec::new();
        while Instant::now() < end {
            grants.push(take(limit, 1 + n * 7).await);
            tokio::task::yield_now().await;
        }
        grants
    };
    let grants = futures::future::join_all((0..workers).map(worker)).await;
    grants.into_iter().flatten().collect()
}

#[tokio::test]
async fn no_second_gives_more_than_the_rate() {
    let limit = limit(100).await;
    let grants = run(&limit, 4, Duration::from_millis(2_500)).await;
    assert!(most_in_a_second(&grants) <= 100);
    let total: u32 = grants.iter().map(|grant| grant.permits).sum();
    assert!((101..=300).contains(&total), "the window moves on, {total}");
}

#[tokio::test]
async fn what_is_left_is_given_in_part() {
    let limit = limit(10).await;
    assert_eq!(take(&limit, 7).await.permits, 7);
    assert_eq!(take(&limit, 7).await.permits, 3);
    let nothing = limit.acquire(7).await.unwrap();
    assert_eq!(nothing.permits, 0);
    assert!(nothing.retry_after > Duration::ZERO && nothing.retry_after <= SECOND);
}

#[tokio::test]
async fn rate_0_is_no_limit() {
    let limit = limit(0).await;
    assert_eq!(take(&limit, 1_000_000).await.permits, 1_000_000);
}

#[tokio::test]
async fn a_changed_rate_holds_at_once_and_setting_it_grants_nothing() {
    let limit = limit(100).await;
    let before = take(&limit, 100).await;
    assert_eq!(before.permits, 100);
    for _ in 0..10 {
        limit.set_rate(100).await.unwrap();
        let again = take(&limit, 100).await;
        assert!(
            again.permits == 0 || again.answered - before.asked >= SECOND,
            "set again, nothing is free"
        );
    }

    limit.set_rate(500).await.unwrap();
    let mut grants = run(&limit, 4, Duration::from_millis(1_500)).await;
    grants.insert(0, before);
    assert!(most_in_a_second(&grants) <= 500);
    let total: u32 = grants.iter().map(|grant| grant.permits).sum();
    assert!(total > 500, "the new rate holds within two seconds, {total}");

    limit.set_rate(50).await.unwrap();
    eventually(2 * SECOND, "the lower rate holds", async || {
        let grants = run(&limit, 2, Duration::from_millis(300)).await;
        grants.iter().map(|grant| grant.permits).sum::<u32>() <= 50
    })
    .await;
}

#[tokio::test]
async fn the_stored_rate_can_be_read() {
    let limit = limit(100).await;
    assert_eq!(limit.stored_rate().await.unwrap(), None, "the default is not stored");
    for rate in [500, 0, u32::MAX] {
        limit.set_rate(rate).await.unwrap();
        assert_eq!(limit.stored_rate().await.unwrap(), Some(rate));
    }
}
