//! The processing limit: no second gives more than the rate, whatever is set and how often.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use campaign::{
    naming::Naming,
    redis::{connection::Redis, limit::ProcessingLimit},
};
use testkit::{eventually::eventually, redis::RedisServer};
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);
/// How long anything may take on a busy machine.
const SOON: Duration = Duration::from_secs(60);

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

/// Workers that ask for as much as they can get, for so long at least and until they have got so much.
async fn run(limit: &ProcessingLimit, workers: u32, duration: Duration, enough: u32) -> Vec<Grant> {
    let start = Instant::now();
    let total = AtomicU32::new(0);
    let total = &total;
    let worker = |n: u32| async move {
        let mut grants = Vec::new();
        while start.elapsed() < duration || total.load(Ordering::Relaxed) < enough {
            assert!(start.elapsed() < SOON, "no {enough} permits within {SOON:?}");
            let grant = take(limit, 1 + n * 7).await;
            total.fetch_add(grant.permits, Ordering::Relaxed);
            grants.push(grant);
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
    // More than one window has: the window moves on.
    let start = Instant::now();
    let grants = run(&limit, 4, Duration::from_millis(2_500), 101).await;
    let seconds = start.elapsed().as_secs() as u32;
    assert!(most_in_a_second(&grants) <= 100);
    let total: u32 = grants.iter().map(|grant| grant.permits).sum();
    assert!(total <= 100 * (seconds + 2), "{total} in {seconds} s");
}

#[tokio::test]
async fn what_is_left_is_given_in_part() {
    // Until all three fall into one second.
    let (permits, nothing) = eventually(SOON, "three calls within a second", async || {
        let limit = limit(10).await;
        let start = Instant::now();
        let permits = [take(&limit, 7).await.permits, take(&limit, 7).await.permits];
        let nothing = limit.acquire(7).await.unwrap();
        (start.elapsed() < SECOND).then_some((permits, nothing))
    })
    .await;
    assert_eq!(permits, [7, 3]);
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
    // The new rate holds: else it would take these seconds five times as long.
    let mut grants = run(&limit, 4, Duration::from_millis(1_500), 501).await;
    grants.insert(0, before);
    assert!(most_in_a_second(&grants) <= 500);

    limit.set_rate(50).await.unwrap();
    eventually(SOON, "the lower rate holds", async || {
        let grants = run(&limit, 2, Duration::from_millis(300), 0).await;
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
