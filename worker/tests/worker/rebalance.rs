//! Workers come and go.

use std::time::Duration;

use campaign::kafka::consumer::{ConsumedRecord, ConsumerEvent, GroupConsumer};
use prometheus_client::metrics::gauge::Gauge;
use testkit::eventually::eventually;
use tokio::{sync::mpsc::Receiver, time::timeout};
use worker::{assignment::Assignment, partition::WindowLimits};

use crate::fixture::{LIMIT, Sale};

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_come_and_go_repeat_nothing() {
    let sale = Sale::start(10_000).await;
    let mut settings = sale.settings();
    // Many transactions, so that the rebalances fall among them.
    settings.tuning.batch_claims = 50;
    settings.postgres.postgres_pool = 6;
    let first = crate::fixture::TestWorker::start(settings.clone()).await;
    let mut records = sale.claim_in_records_of(5, 2_000).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(crate::fixture::TestWorker::start(settings.clone()).await);
        records.extend(sale.claim_in_records_of(5, 1_000).await);
    }
    for other in others {
        records.extend(sale.claim_in_records_of(5, 1_000).await);
        other.stop().await;
    }
    sale.issued_are(&records).await;
    sale.settled().await;
    eventually(LIMIT, "every coupon has its event", async || {
        sale.number("SELECT count(*) FROM coupon_activity WHERE campaign_id = $1 AND type = 'COUPON_ISSUED'")
            .await
            == 10_000
    })
    .await;
    assert_eq!(sale.row().await.issued, 10_000);
    first.stop().await;
}

/// What was committed before the stop is settled; what was not is read by the next worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_leaves_nothing_half_done() {
    let sale = Sale::start(2_000).await;
    let mut settings = sale.settings();
    settings.tuning.batch_claims = 50;
    // Nobody else settles.
    settings.tuning.sweep_interval = LIMIT * 10;
    let records = sale.claim_in_records_of(5, 2_000).await;
    let worker = crate::fixture::TestWorker::start(settings.clone()).await;
    eventually(LIMIT, "it is under way", async || !sale.issued().await.is_empty()).await;
    worker.stop().await;
    let numbers = sale.numbers().await;
    let issued = sale.issued().await.len() as i64;
    assert_eq!(numbers.pending, 2_000 - issued, "what was committed is settled");
    let _next = crate::fixture::TestWorker::start(settings).await;
    sale.issued_are(&records).await;
    sale.settled().await;
}

async fn take(assignment: &Assignment, event: ConsumerEvent) -> Option<ConsumedRecord> {
    match event {
        ConsumerEvent::Assigned(partitions) => {
            assignment.assigned(&partitions);
            assignment.start_held().await.unwrap();
        }
        ConsumerEvent::Revoked(partitions) => assignment.revoked(&partitions),
        ConsumerEvent::Started { partition, offset } => assignment.started(partition, offset),
        ConsumerEvent::Record(record) => return Some(record),
    }
    None
}

async fn next_record(assignment: &Assignment, events: &mut Receiver<ConsumerEvent>) -> ConsumedRecord {
    let next = async {
        loop {
            let event = events.recv().await.unwrap();
            if let Some(record) = take(assignment, event).await {
                return record;
            }
        }
    };
    timeout(LIMIT, next).await.expect("a record in time")
}

/// A record of before a rebalance fills its window while the partition has already been given back and assigned again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_window_of_before_is_full_of_does_not_hold_the_next_one_back() {
    let sale = Sale::start(10).await;
    let record = sale.reserve(&sale.users(1)).await;
    let place = sale.publish_bytes(&record.encode().unwrap()).await;
    let naming = &sale.installation.naming;
    let topic = naming.requests_topic();
    let session = Duration::from_secs(10);
    let (consumer, mut events) =
        GroupConsumer::join(&sale.installation.kafka, &naming.worker_group(), &topic, session).unwrap();
    let limits = WindowLimits {
        records: 1,
        claims: 1_000,
    };
    let assignment = Assignment::new(topic, consumer, sale.database.clone(), limits, Gauge::default());
    let first = next_record(&assignment, &mut events).await;
    assert_eq!((first.partition, first.offset), place);

    assert!(assignment.renew());
    let mut unread = Vec::new();
    while !unread
        .last()
        .is_some_and(|event| matches!(event, ConsumerEvent::Assigned(partitions) if !partitions.is_empty()))
    {
        unread.push(timeout(LIMIT, events.recv()).await.unwrap().unwrap());
    }
    assert!(assignment.receive(first.partition, first.offset, 1).is_some());
    for event in unread {
        assert!(take(&assignment, event).await.is_none());
    }
    let again = next_record(&assignment, &mut events).await;
    assert_eq!((again.partition, again.offset), place);
    assignment.leave().await;
}
