use std::{collections::HashMap, time::Duration};

use campaign::{
    event::EventType,
    postgres::{
        coupon::CouponKey,
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
    let ids: Vec<i64> = next.iter().map(|row| row.id).collect();
    shop.database.outbox_done(&ids).await.unwrap();

    let next = shop.database.outbox_next(10).await.unwrap();
    assert_eq!(next.len(), 1);
    assert_eq!(
        (next[0].event.event_type, next[0].event.coupon_id),
        (EventType::Used, first)
    );
    shop.database.outbox_done(&[next[0].id]).await.unwrap();
    assert_eq!(shop.database.outbox_next(10).await.unwrap(), []);
}

#[tokio::test]
async fn a_restock_that_waits_lets_the_others_pass() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a"]);
    let first = record.record.claims[0].request_id;
    shop.persist(&[record]).await;
    shop.database
        .outbox_done(&[shop.database.outbox_next(1).await.unwrap()[0].id])
        .await
        .unwrap();
    shop.database.cancel_coupon(first).await.unwrap();
    shop.persist(&[shop.record(&["b"])]).await;

    let waiting = shop.database.outbox_next(1).await.unwrap();
    assert!(waiting[0].restock);
    let hour = Duration::from_secs(3600);
    shop.database.outbox_postpone(&[waiting[0].id], hour).await.unwrap();
    let next = shop.database.outbox_next(1).await.unwrap();
    assert_eq!(next[0].event.event_type, EventType::Issued);
    // Only restocks can wait: nothing comes after them.
    shop.database.outbox_postpone(&[next[0].id], hour).await.unwrap();
    assert_eq!(shop.database.outbox_next(1).await.unwrap(), next);
    shop.database
        .outbox_postpone(&[waiting[0].id], Duration::ZERO)
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
    let advance = |from, to| [Advance { partition: 0, from, to }];
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
