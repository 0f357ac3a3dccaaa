//! What nobody else brings to an end.

use std::time::Duration;

use campaign::{postgres::persist::Reason, redis::state::Transition};
use testkit::eventually::eventually;

use crate::fixture::{LIMIT, Sale, requests};

/// The sweep reads the decisions after `consumed`, and the end offsets after the batches.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_were_reserved_and_never_published_are_free_again() {
    let sale = Sale::start(100).await;
    let published = sale.claim(5).await;
    let users = sale.users(7);
    let lost = sale.reserve(&users).await;
    assert_eq!(sale.numbers().await.taken, 12);
    let worker = sale.worker().await;
    sale.settled().await;
    assert_eq!(sale.issued().await, requests(&published));
    assert_eq!(sale.numbers().await.taken, 5);
    for claim in &lost.claims {
        assert_eq!(
            sale.database.rejection(claim.request_id, &claim.user_id).await.unwrap(),
            Some(Reason::NotStored)
        );
        assert!(!sale.holds(&claim.user_id).await);
    }
    assert!(worker.metric("coupon_worker_swept_batches_total{kind=\"abandoned\"}") >= 1.0);

    // The record comes after all: it changes nothing, and the same users can claim again.
    sale.publish(&lost).await;
    let again = sale.reserve(&users).await;
    sale.publish(&again).await;
    sale.issued_are(&[published[0].clone(), again]).await;
    sale.settled().await;
}

/// A stalled campaign's records are in Kafka: they are left to the worker. The same sweep frees what is in no record.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_wait_in_kafka_are_left_to_the_worker() {
    let sale = Sale::start(100).await;
    let key = sale.installation.naming.issue_lock(&sale.campaign.name);
    let held = sale
        .locks
        .try_acquire(&key, Duration::from_secs(30), 0)
        .await
        .unwrap()
        .unwrap();
    let waiting = sale.claim(5).await;
    sale.reserve(&sale.users(7)).await;
    let worker = sale.worker().await;
    eventually(LIMIT, "the lost ones are free", async || {
        sale.numbers().await.taken == 5
    })
    .await;
    let decided = sale
        .database
        .decided_batches(sale.campaign.id, &[waiting[0].batch.clone()])
        .await
        .unwrap();
    assert!(decided.is_empty(), "{decided:?}");
    held.release().await.unwrap();
    sale.issued_are(&waiting).await;
    sale.settled().await;
    worker.stop().await;
}

/// A worker died between its commit and the settlement: nothing is delivered again.
#[tokio::test(flavor = "multi_thread")]
async fn decided_claims_that_nobody_settled_are_settled_as_stored() {
    let sale = Sale::start(3).await;
    let stored = sale.reserve(&sale.users(2)).await;
    let abandoned = sale.reserve(&sale.users(1)).await;
    persist_without_settling(&sale, &stored).await;
    let claims: Vec<_> = abandoned
        .claims
        .iter()
        .map(|claim| (claim.user_id.clone(), claim.request_id, abandoned.reservation(claim)))
        .collect();
    sale.database
        .abandon(
            &sale.installation.naming.requests_topic(),
            sale.campaign.id,
            &abandoned.batch,
            &claims,
            &Default::default(),
        )
        .await
        .unwrap();
    assert_eq!(sale.numbers().await.pending, 3);
    let worker = sale.worker().await;
    sale.settled().await;
    assert_eq!(sale.issued().await, requests(&[stored]));
    assert_eq!(sale.numbers().await.taken, 2);
    eventually(LIMIT, "it is counted", async || {
        worker.metric("coupon_worker_swept_batches_total{kind=\"as_stored\"}") == 2.0
    })
    .await;
}

/// The transaction of the discard is there, its release is not: it is released later, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_discard_that_was_cut_short_is_released_later() {
    let sale = Sale::start(1).await;
    let users = sale.users(1);
    let record = sale.reserve(&users).await;
    let reservation = record.reservation(&record.claims[0]);
    park(&sale, &record).await;
    assert!(
        sale.database
            .discard_parked(sale.campaign.id, &reservation)
            .await
            .unwrap()
    );
    assert!(sale.holds(&users[0]).await, "the release is what the crash has cut off");
    let _worker = sale.worker().await;
    eventually(LIMIT, "the slot is free", async || !sale.holds(&users[0]).await).await;
    eventually(LIMIT, "the entry is gone", async || {
        sale.database.parked(None).await.unwrap().is_empty()
    })
    .await;
    // Once: the slot of the next user stays his, also when the old release comes again.
    let next = sale.reserve(&sale.users(1)).await;
    sale.publish(&next).await;
    let again = sale
        .state
        .release(&sale.campaign.name, &[(users[0].clone(), reservation)])
        .await
        .unwrap();
    assert_eq!(again, Transition::Done(0));
    sale.issued_are(&[next]).await;
    sale.settled().await;
}

/// While Kafka cannot tell its end offsets, nothing is decided.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_topic_decides_nothing() {
    let sale = Sale::start(10).await;
    let kafka = testkit::kafka::KafkaServer::shared().await.unwrap();
    let proxy = kafka.proxy().await.unwrap();
    let mut settings = sale.settings();
    settings.kafka = proxy.kafka_settings();
    let worker = crate::fixture::TestWorker::start(settings).await;
    let first = sale.claim(1).await;
    sale.issued_are(&first).await;
    proxy.refuse();
    sale.reserve(&sale.users(4)).await;
    eventually(LIMIT, "a sweep gives up", async || {
        worker.metric("coupon_worker_sweeps_undecided_total") >= 1.0
    })
    .await;
    assert_eq!(sale.numbers().await.taken, 5);
    assert_eq!(
        worker.get("/livez").await.0,
        200,
        "a restart would not bring Kafka back"
    );
    proxy.restore();
    eventually(LIMIT, "the lost ones are free", async || {
        sale.numbers().await.taken == 1
    })
    .await;
}

async fn persist_without_settling(sale: &Sale, record: &campaign::record::ClaimRecord) {
    persist_with(sale, record, Default::default()).await;
}

/// Persists as a worker does whose claims the database refused.
async fn park(sale: &Sale, record: &campaign::record::ClaimRecord) {
    let dead = record
        .claims
        .iter()
        .map(|claim| (record.reservation(claim), "refused by a test".to_owned()))
        .collect();
    persist_with(sale, record, dead).await;
    sale.state
        .settle(&sale.campaign.name, std::slice::from_ref(&record.batch))
        .await
        .unwrap();
}

async fn persist_with(
    sale: &Sale,
    record: &campaign::record::ClaimRecord,
    dead: std::collections::HashMap<campaign::identity::Reservation, String>,
) {
    use campaign::postgres::persist::{LocatedRecord, PersistRequest};
    sale.database
        .persist(&PersistRequest {
            topic: &sale.installation.naming.requests_topic(),
            campaign: sale.campaign.id,
            token: 1,
            records: &[LocatedRecord {
                partition: 0,
                offset: 0,
                record: record.clone(),
            }],
            dead: &dead,
            advances: &[],
        })
        .await
        .unwrap();
}
