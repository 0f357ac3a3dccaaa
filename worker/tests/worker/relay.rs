//! From the outbox to the topic and into the projection.

use std::collections::{HashMap, HashSet};

use campaign::{
    event::{EventType, LifecycleEvent},
    identity::RequestId,
    kafka::producer::{Delivery, Outgoing},
    postgres::coupon::{CouponKey, Redemption},
};
use testkit::{eventually::eventually, proxy::Proxy, redis::RedisServer};

use crate::fixture::{LIMIT, Sale, TestWorker, requests};

async fn events(sale: &Sale) -> Vec<LifecycleEvent> {
    sale.everything_on(&sale.installation.naming.lifecycle_topic())
        .await
        .iter()
        .map(|value| serde_json::from_slice(value).unwrap())
        .collect()
}

async fn outbox_is_empty(sale: &Sale) {
    eventually(LIMIT, "the outbox is empty", async || {
        sale.database.outbox_len().await.unwrap() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_per_coupon() {
    let sale = Sale::start(300).await;
    let records = sale.claim(300).await;
    let worker = sale.worker().await;
    sale.issued_are(&records).await;
    let (mut used, mut canceled) = (HashSet::new(), HashSet::new());
    for (n, id) in requests(&records).into_iter().enumerate() {
        let redemption = match n % 3 {
            0 => {
                used.insert(id);
                sale.database.use_coupon(&CouponKey::Id(id)).await.unwrap()
            }
            1 => {
                canceled.insert(id);
                sale.database.cancel_coupon(id).await.unwrap()
            }
            _ => continue,
        };
        assert!(matches!(redemption, Redemption::Done(_)), "{redemption:?}");
    }
    outbox_is_empty(&sale).await;
    sale.activity_is(500, LIMIT).await;
    let mut by_coupon: HashMap<RequestId, Vec<EventType>> = HashMap::new();
    for event in events(&sale).await {
        by_coupon.entry(event.coupon_id).or_default().push(event.event_type);
    }
    for id in requests(&records) {
        let wanted = if used.contains(&id) {
            vec![EventType::Issued, EventType::Used]
        } else if canceled.contains(&id) {
            vec![EventType::Issued, EventType::Canceled]
        } else {
            vec![EventType::Issued]
        };
        assert_eq!(by_coupon[&id], wanted);
    }
    sale.settled().await;
    worker.stop().await;
}

/// The cancel's transaction is there and its process is gone: the relay gives the slot back, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_slot_is_given_back_once() {
    let sale = Sale::start(1).await;
    let users = sale.users(1);
    let record = sale.reserve(&users).await;
    sale.publish(&record).await;
    let worker = sale.worker().await;
    sale.settled().await;
    worker.stop().await;
    let id = record.claims[0].request_id;
    assert!(matches!(
        sale.database.cancel_coupon(id).await.unwrap(),
        Redemption::Done(_)
    ));
    assert_eq!(sale.numbers().await.taken, 1, "nobody has told Redis");
    let _worker = sale.worker().await;
    outbox_is_empty(&sale).await;
    assert_eq!(sale.numbers().await.taken, 0);
    // The restock repeated after a crash changes nothing.
    sale.state
        .restock(&sale.campaign.name, &users[0], id, sale.epoch)
        .await
        .unwrap();
    assert_eq!(sale.numbers().await.taken, 0);
    let next = sale.claim(1).await;
    let mut wanted = requests(&next);
    wanted.insert(id);
    eventually(LIMIT, "the next one has it", async || sale.issued().await == wanted).await;
    sale.settled().await;
}

/// A cancel is sent only once Redis has confirmed the restock; meanwhile other events pass.
#[tokio::test(flavor = "multi_thread")]
async fn a_restock_that_redis_does_not_confirm_is_kept() {
    let sale = Sale::start(10).await;
    let records = sale.claim(2).await;
    let server = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let mut settings = sale.settings();
    settings.redis = proxy.redis_settings();
    let worker = TestWorker::start(settings).await;
    sale.issued_are(&records).await;
    outbox_is_empty(&sale).await;
    sale.settled().await;
    proxy.shut().await;
    let ids: Vec<RequestId> = requests(&records).into_iter().collect();
    sale.database.cancel_coupon(ids[0]).await.unwrap();
    sale.database.use_coupon(&CouponKey::Id(ids[1])).await.unwrap();
    sale.activity_is(4, LIMIT).await;
    assert_eq!(sale.database.outbox_len().await.unwrap(), 1, "the cancel waits");
    assert_eq!(sale.numbers().await.taken, 2);
    proxy.restore();
    outbox_is_empty(&sale).await;
    assert_eq!(sale.numbers().await.taken, 1);
    worker.stop().await;
}

/// The relay may repeat, somebody may write rubbish: the projection has each event once.
#[tokio::test(flavor = "multi_thread")]
async fn the_projection_drops_repeats_and_skips_what_is_no_event() {
    let sale = Sale::start(10).await;
    let records = sale.claim(5).await;
    let worker = sale.worker().await;
    sale.issued_are(&records).await;
    sale.activity_is(5, LIMIT).await;
    let topic = sale.installation.naming.lifecycle_topic();
    let mut values = sale.everything_on(&topic).await;
    assert_eq!(values.len(), 5);
    values.push(b"{".to_vec());
    let last = LifecycleEvent {
        event_type: EventType::Used,
        event_id: uuid::Uuid::now_v7(),
        ..serde_json::from_slice(&values[0]).unwrap()
    };
    values.push(serde_json::to_vec(&last).unwrap());
    for value in values {
        let sent = sale.producer.send(&Outgoing {
            topic: &topic,
            key: Some(b"one-partition"),
            value: &value,
            ..Outgoing::default()
        });
        assert!(matches!(sent.await.unwrap(), Delivery::Acknowledged { .. }));
    }
    // The last one of the partition is there, so the others have been.
    sale.activity_is(6, LIMIT).await;
    assert_eq!(worker.metric("coupon_worker_events_skipped_total"), 1.0);
    assert_eq!(worker.metric("coupon_worker_events_projected_total"), 6.0);
}
