//! Topics that are deleted, and made anew, under a running worker.

use std::{collections::BTreeSet, time::Duration};

use campaign::{kafka::topics, rebuild::Rebuilder, record::ClaimRecord, topic_recovery::accept_topic};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use testkit::eventually::eventually;

use crate::fixture::{self, LIMIT, Sale, TestWorker, requests};

async fn delete(sale: &Sale, topic: &str) {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &sale.installation.kafka.kafka_brokers)
        .create()
        .unwrap();
    admin.delete_topics(&[topic], &AdminOptions::new()).await.unwrap();
}

/// Only the topics that are missing are made.
async fn make_anew(sale: &Sale, topic: &str) {
    delete(sale, topic).await;
    eventually(LIMIT, "the topic is there again", async || {
        topics::create(&sale.installation.kafka, &sale.installation.naming, 1)
            .await
            .ok()?;
        (sale.reader.watermarks(topic).await.ok()?.len() == topics::PARTITIONS as usize).then_some(())
    })
    .await;
}

/// A client that fell silent with its topic is made anew after half a minute.
const LIMIT_ANEW: Duration = LIMIT.saturating_mul(2);

/// A worker that has projected the events of so many claims, and their records.
async fn projected(sale: &Sale, count: usize) -> (TestWorker, Vec<ClaimRecord>) {
    let worker = sale.worker().await;
    let records = sale.claim(count).await;
    sale.issued_are(&records).await;
    sale.activity_is(i64::try_from(count).unwrap(), LIMIT_ANEW).await;
    (worker, records)
}

/// The relay forgets an event once it is acknowledged: what the new topic holds has to be read, however far the old one was
/// consumed.
#[tokio::test(flavor = "multi_thread")]
async fn events_in_a_lifecycle_topic_that_was_made_anew_are_projected() {
    let sale = Sale::start(1_000).await;
    let (worker, before) = projected(&sale, 300).await;
    assert_eq!(worker.metric("coupon_worker_projection_restarts_total"), 0.0);

    make_anew(&sale, &sale.installation.naming.lifecycle_topic()).await;
    let mut all = before;
    all.extend(sale.claim(100).await);
    sale.issued_are(&all).await;
    sale.activity_is(400, LIMIT_ANEW).await;
    assert!(worker.metric("coupon_worker_projection_restarts_total") >= 1.0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_cannot_be_looked_at_is_counted_and_hides_nothing_of_the_other() {
    let sale = Sale::start(1_000).await;
    let (worker, _) = projected(&sale, 300).await;

    delete(&sale, &sale.installation.naming.requests_topic()).await;
    let lifecycle = sale.installation.naming.lifecycle_topic();
    delete(&sale, &lifecycle).await;
    eventually(LIMIT, "neither can be looked at", async || {
        ["watch_claims", "watch_events"]
            .iter()
            .all(|kind| worker.metric(&format!("coupon_worker_retries_total{{kind=\"{kind}\"}}")) >= 1.0)
    })
    .await;
    worker.stop().await;
}

/// Records of the old log wait for their campaign while the topic is made anew and accepted: their offsets are those of other
/// records now.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_of_the_old_log_does_not_stand_for_the_new_one() {
    let mut held_up = Sale::start(1_000).await;
    let sale = held_up.beside(fixture::terms(1_000)).await;
    let topic = sale.installation.naming.requests_topic();
    let key = held_up.installation.naming.issue_lock(&held_up.campaign.name);
    let lock = held_up.locks.acquire(&key, LIMIT * 3, 0, LIMIT).await.unwrap().unwrap();
    let old = held_up.reserve(&held_up.users(1)).await;
    let place = held_up.publish_bytes(&old.encode().unwrap()).await;
    assert_eq!(place.1, 0);
    // Something is consumed of another partition: by that it is found that the topic is another one.
    let (mut others, mut behind) = (Vec::new(), 0);
    loop {
        let record = sale.reserve(&sale.users(1)).await;
        let (partition, _) = sale.publish_bytes(&record.encode().unwrap()).await;
        others.push(record);
        if partition != place.0 {
            break;
        }
        behind += 1;
    }
    let worker = sale.worker().await;
    sale.issued_are(&others).await;
    eventually(
        LIMIT,
        "only the record that is held up is left, and what lies behind it",
        async || {
            let consumed = sale.database.consumed(&topic).await.unwrap();
            consumed.values().any(|next| *next > 0)
                && worker.metric("coupon_worker_backlog_claims") == f64::from(1 + behind)
        },
    )
    .await;

    make_anew(&sale, &topic).await;
    eventually(LIMIT, "it is found", async || {
        sale.database.shortened_topic(&topic).await.unwrap()
    })
    .await;
    let rebuilder = Rebuilder {
        state: sale.state.clone(),
        locks: sale.locks.clone(),
        database: sale.database.clone(),
        reader: sale.reader.clone(),
        naming: sale.installation.naming.clone(),
        settle_after: sale.installation.installation.settle_after(),
    };
    assert!(accept_topic(&rebuilder).await.unwrap().is_some());
    held_up.epoch = held_up.numbers().await.epoch;

    // Until one lies where the old record lay.
    let mut new = Vec::new();
    loop {
        let record = held_up.reserve(&held_up.users(1)).await;
        let at = held_up.publish_bytes(&record.encode().unwrap()).await;
        new.push(record);
        if at.0 == place.0 {
            assert_eq!(at, place);
            break;
        }
    }
    lock.release().await.unwrap();
    let told = requests(&new);
    eventually(LIMIT * 2, "whoever was told SUCCESS since has a coupon", async || {
        let issued: BTreeSet<_> = held_up.issued().await;
        told.is_subset(&issued)
    })
    .await;
    worker.stop().await;
}
