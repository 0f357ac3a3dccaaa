use std::{collections::HashMap, time::Duration};

use campaign::{
    event::EventType,
    postgres::{
        consumed::Life,
        coupon::CouponKey,
        outbox::OutboxKey,
        persist::{Advance, PersistError},
    },
};

use crate::shop::Shop;

const LIFECYCLE: &str = "coupon.lifecycle";

#[tokio::test]
async fn a_coupons_later_event_waits_for_its_earlier_one() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a", "b"]);
    let first = record.record.claims[0].request_id;
    shop.persist(&[record]).await;
    shop.database.use_coupon(&CouponKey::Id(first)).await.unwrap();
    assert_eq!(shop.database.outbox_len().await.unwrap(), 3);

    let next = shop.database.outbox_next(10).await.unwrap();
    let types: Vec<EventType> = next.iter().map(|row| row.event.event_type).collect();
    assert_eq!(types, [EventType::Issued, EventType::Issued]);
    let keys: Vec<OutboxKey> = next.iter().map(|row| row.key).collect();
    shop.database.outbox_done(&keys).await.unwrap();

    let next = shop.database.outbox_next(10).await.unwrap();
    assert_eq!(next.len(), 1);
    assert_eq!(
        (next[0].event.event_type, next[0].event.coupon_id),
        (EventType::Used, first)
    );
    shop.database.outbox_done(&[next[0].key]).await.unwrap();
    assert_eq!(shop.database.outbox_next(10).await.unwrap(), []);
}

/// Postgres was put back between the look and the removal: the ids are given anew.
#[tokio::test]
async fn an_id_that_another_event_got_meanwhile_is_not_removed() {
    let shop = Shop::open(5).await;
    shop.persist(&[shop.record(&["a", "b"])]).await;
    let rows = shop.database.outbox_next(10).await.unwrap();
    let (mine, other) = (rows[0].key, rows[1].key);
    for stranger in [
        OutboxKey {
            coupon: other.coupon,
            ..mine
        },
        OutboxKey {
            occurred_at: mine.occurred_at + 1,
            ..mine
        },
        OutboxKey { id: other.id, ..mine },
    ] {
        shop.database.outbox_done(&[stranger]).await.unwrap();
        assert_eq!(shop.database.outbox_next(10).await.unwrap(), rows, "{stranger:?}");
    }
    shop.database.outbox_done(&[mine]).await.unwrap();
    assert_eq!(shop.database.outbox_next(10).await.unwrap(), rows[1..]);
}

#[tokio::test]
async fn a_restock_that_waits_lets_the_others_pass() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a"]);
    let first = record.record.claims[0].request_id;
    shop.persist(&[record]).await;
    shop.database
        .outbox_done(&[shop.database.outbox_next(1).await.unwrap()[0].key])
        .await
        .unwrap();
    shop.database.cancel_coupon(first).await.unwrap();
    shop.persist(&[shop.record(&["b"])]).await;

    let waiting = shop.database.outbox_next(1).await.unwrap();
    assert!(waiting[0].restock);
    let hour = Duration::from_secs(3600);
    shop.database.outbox_postpone(&[waiting[0].key], hour).await.unwrap();
    let next = shop.database.outbox_next(1).await.unwrap();
    assert_eq!(next[0].event.event_type, EventType::Issued);
    // Only restocks can wait: nothing comes after them.
    shop.database.outbox_postpone(&[next[0].key], hour).await.unwrap();
    assert_eq!(shop.database.outbox_next(1).await.unwrap(), next);
    shop.database
        .outbox_postpone(&[waiting[0].key], Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(shop.database.outbox_next(1).await.unwrap(), waiting);
}

#[tokio::test]
async fn the_projection_drops_repeats() {
    let shop = Shop::open(5).await;
    shop.persist(&[shop.record(&["a", "b"])]).await;
    let events: Vec<_> = shop
        .database
        .outbox_next(10)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.event)
        .collect();
    let advance = |from, to| {
        [Advance {
            partition: 0,
            from,
            to,
            life: Life::default(),
        }]
    };
    let twice = [events[0].clone(), events[0].clone()];
    let project = async |events, advances: &[Advance]| shop.database.project(LIFECYCLE, events, advances).await;
    assert_eq!(project(&twice, &advance(0, 2)).await.unwrap(), 1);
    let moved = project(&events, &advance(0, 2)).await;
    assert!(matches!(moved, Err(PersistError::Moved { stored: 2, .. })), "{moved:?}");
    assert_eq!(shop.count("coupon_activity").await, 1);
    assert_eq!(project(&events, &advance(2, 4)).await.unwrap(), 1);
    assert_eq!(shop.count("coupon_activity").await, 2);
    assert_eq!(
        shop.database.consumed(LIFECYCLE).await.unwrap(),
        HashMap::from([(0, 4)])
    );
}
