//! How long the keys live: never for ever, never shorter than the sale.

use std::time::Duration;

use campaign::{
    identity::RequestId,
    redis::state::{Configuration, Refusal, ReserveAnswer, ReserveOutcome::SoldOut, StateAnswer},
};
use jiff::{SignedDuration, Timestamp};
use testkit::eventually::eventually;

use crate::fixture::{Fixture, TTL_MS, configuration, lives, raw, user};

fn in_minutes(minutes: i64) -> Option<Timestamp> {
    Some(Timestamp::now() + SignedDuration::from_mins(minutes))
}

/// Lets a life be a little shorter than set: time passes while a test runs.
fn about(life: i64, wanted: i64) -> bool {
    (wanted - 20_000..=wanted).contains(&life)
}

#[tokio::test]
async fn a_short_state_expires_as_a_whole_and_is_missing_then() {
    let fixture = Fixture::shared().await;
    let mut short = configuration(1_000);
    short.ttl_ms = 10_000;
    fixture.rebuild(&short, &[]).await;

    // Reserves around the expiry: each answer is a slot or the word that the state is missing.
    let mut raw = raw().await;
    let reserve = async |user_number: i32| {
        let claims = [(user(&format!("u{user_number}")), RequestId::fresh())];
        let batch = fixture.batch();
        fixture.store.reserve(&fixture.campaign, &batch, &claims).await.unwrap()
    };
    for n in 0..20 {
        assert!(matches!(reserve(n).await, ReserveAnswer::Judged(_)));
        let lives = lives(&mut raw, &fixture.keys()).await;
        assert_eq!(lives.len(), 5);
        assert!(lives.iter().all(|life| (1..=10_000).contains(life)), "{lives:?}");
    }
    eventually(Duration::from_secs(60), "the state expires", async || {
        fixture.store.state(&fixture.campaign).await.unwrap() == StateAnswer::NotInitialized
    })
    .await;
    assert_eq!(reserve(100).await, ReserveAnswer::Refused(Refusal::NotInitialized));
    assert_eq!(
        lives(&mut raw, &fixture.keys()).await,
        [0; 0],
        "nothing is left, and nothing came back"
    );
}

#[tokio::test]
async fn keys_live_until_ttl_after_the_close() {
    let fixture = Fixture::shared().await;
    let close_in_10 = Configuration {
        closes_at: in_minutes(10),
        ..configuration(1)
    };
    fixture.rebuild(&close_in_10, &[]).await;
    let mut raw = raw().await;
    let wanted = 10 * 60_000 + TTL_MS;
    let check = async |raw: &mut _| {
        let lives = lives(raw, &fixture.keys()).await;
        assert!(lives.iter().all(|&life| about(life, wanted)), "{lives:?}");
        lives.len()
    };
    assert_eq!(check(&mut raw).await, 3, "no claim is pending yet");
    fixture.claim(&["a"]).await;
    assert_eq!(check(&mut raw).await, 5);
    // Sold out: refusals shorten nothing.
    for _ in 0..5 {
        assert_eq!(fixture.claim(&["b"]).await.outcomes, [SoldOut]);
    }
    assert_eq!(check(&mut raw).await, 5);
}

#[tokio::test]
async fn keys_live_until_ttl_after_the_opening() {
    let fixture = Fixture::shared().await;
    let opens_in_3 = Configuration {
        opens_at: in_minutes(3),
        ..configuration(1)
    };
    fixture.rebuild(&opens_in_3, &[]).await;
    let lives = lives(&mut raw().await, &fixture.keys()).await;
    assert!(lives.iter().all(|&life| about(life, 3 * 60_000 + TTL_MS)), "{lives:?}");
}

#[tokio::test]
async fn refusals_keep_a_campaign_without_an_end_alive() {
    let fixture = Fixture::shared().await;
    fixture.rebuild(&configuration(0), &[]).await;
    // As they are two thirds of the ttl later.
    let mut raw = raw().await;
    let keys = fixture.keys();
    let now_ms = fixture.numbers().await.now_ms;
    redis::cmd("HSET")
        .arg(&keys.meta)
        .arg("expires")
        .arg(now_ms + TTL_MS / 3)
        .exec_async(&mut raw)
        .await
        .unwrap();
    for key in [&keys.meta, &keys.occupied, &keys.users] {
        let set: i64 = redis::cmd("PEXPIRE")
            .arg(key)
            .arg(TTL_MS / 3)
            .query_async(&mut raw)
            .await
            .unwrap();
        assert_eq!(set, 1, "{key} is there");
    }
    // Nothing is ever reserved.
    assert_eq!(fixture.claim(&["a"]).await.outcomes, [SoldOut]);
    let lives = lives(&mut raw, &keys).await;
    assert_eq!(lives.len(), 3);
    assert!(lives.iter().all(|&life| about(life, TTL_MS)), "{lives:?}");
}

#[tokio::test]
async fn a_moved_close_moves_the_life() {
    let fixture = Fixture::shared().await.open(5).await;
    fixture.claim(&["a"]).await;
    let mut raw = raw().await;
    for minutes in [10, 2] {
        let moved = Configuration {
            closes_at: in_minutes(minutes),
            ..configuration(5)
        };
        fixture.store.configure(&fixture.campaign, &moved).await.unwrap();
        let lives = lives(&mut raw, &fixture.keys()).await;
        assert_eq!(lives.len(), 5);
        assert!(
            lives.iter().all(|&life| about(life, minutes * 60_000 + TTL_MS)),
            "{lives:?}"
        );
    }
}

#[tokio::test]
async fn a_rebuild_that_stops_half_way_leaves_nothing_behind_for_ever() {
    let fixture = Fixture::shared().await;
    let epoch = crate::fixture::EPOCH;
    fixture
        .store
        .rebuild_begin(&fixture.campaign, fixture.id, epoch)
        .await
        .unwrap();
    let mut raw = raw().await;
    for keys in [fixture.keys(), fixture.keys().staging(epoch)] {
        let lives = lives(&mut raw, &keys).await;
        assert!(!lives.is_empty() && lives.iter().all(|&life| life > 0), "{lives:?}");
    }
}
