//! What nobody else brings to an end.

use std::time::Duration;

use campaign::{
    identity::UserId,
    postgres::persist::Reason,
    record::ClaimRecord,
    redis::{lock::Held, state::Transition},
};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use testkit::{eventually::eventually, redis::RedisServer};
use worker::{
    metrics::Metrics,
    settings::WorkerSettings,
    sweeper::{SweepError, Sweeper},
};

use crate::fixture::{LIMIT, Sale, TestWorker, requests, terms};

/// Settings of a worker that sweeps soon what was reserved.
fn quick(sale: &Sale) -> WorkerSettings {
    let mut settings = sale.settings();
    settings.installation = sale.installation.installation.clone();
    settings
}

/// Claims until the record is there before its batch is swept.
async fn claim_in_time(sale: &Sale, users: &[UserId]) -> ClaimRecord {
    eventually(LIMIT, "a claim is in time", async || {
        let record = sale.reserve(users).await;
        sale.publish(&record).await;
        eventually(LIMIT, "it is settled", async || sale.numbers().await.pending == 0).await;
        sale.issued()
            .await
            .is_superset(&requests(std::slice::from_ref(&record)))
            .then_some(record)
    })
    .await
}

/// The sweep reads the decisions after `consumed`, and the end offsets after the batches.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_were_reserved_and_never_published_are_free_again() {
    let sale = Sale::start(100).await;
    let published = sale.claim(5).await;
    let users = sale.users(7);
    let lost = sale.reserve(&users).await;
    assert_eq!(sale.numbers().await.taken, 12);
    let worker = TestWorker::start(quick(&sale)).await;
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
    let again = claim_in_time(&sale, &users).await;
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
    let worker = TestWorker::start(quick(&sale)).await;
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
    let worker = TestWorker::start(quick(&sale)).await;
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
    let mut settings = quick(&sale);
    settings.kafka = proxy.kafka_settings();
    let first = sale.claim(1).await;
    let worker = TestWorker::start(settings).await;
    sale.issued_are(&first).await;
    proxy.shut().await;
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
    worker.stop().await;
}

/// A sweeper without a worker, to sweep once at a known moment.
fn sweeper(sale: &Sale) -> Sweeper {
    Sweeper {
        database: sale.database.clone(),
        state: sale.state.clone(),
        locks: sale.locks.clone(),
        reader: sale.reader.clone(),
        naming: sale.installation.naming.clone(),
        settle_after: sale.installation.installation.settle_after(),
        interval: Duration::from_millis(200),
        metrics: Metrics::new(),
    }
}

async fn held(sale: &Sale) -> Held {
    let key = sale.installation.naming.sweeper_lock();
    sale.locks
        .try_acquire(&key, Duration::from_secs(60), 0)
        .await
        .unwrap()
        .unwrap()
}

/// Waits until what is reserved now is old enough to be swept.
async fn grown_old(sale: &Sale, batches: usize) {
    let older_than = sale.installation.installation.settle_after().as_millis() as i64;
    eventually(LIMIT, "the batches are old", async || {
        let expired = sale.state.expired_batches(&sale.campaign.name, older_than, 10).await;
        expired.unwrap().unwrap().len() == batches
    })
    .await;
}

/// Under load there is always something that was consumed after the end offsets were read.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_go_on_while_a_sweep_reads_do_not_stop_it() {
    let sale = Sale::start(100).await;
    sale.reserve(&sale.users(3)).await;
    grown_old(&sale, 1).await;
    let held = held(&sale).await;
    // The sweep reads the end offsets and then waits for what is consumed.
    let mut consuming = sale.pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE consumed IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *consuming)
        .await
        .unwrap();
    let sweeper = sweeper(&sale);
    let sweep = sweeper.sweep(&held);
    let goes_on = async {
        eventually(LIMIT, "the sweep waits", async || {
            sale.number(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND wait_event_type = 'Lock' AND query LIKE '%FROM consumed%' AND $1::uuid IS NOT NULL",
            )
            .await
                > 0
        })
        .await;
        let (partition, offset) = sale.publish_bytes(b"{").await;
        sqlx::query("INSERT INTO consumed (topic, partition, next_offset) VALUES ($1, $2, $3)")
            .bind(sale.installation.naming.requests_topic())
            .bind(partition)
            .bind(offset + 1)
            .execute(&mut *consuming)
            .await
            .unwrap();
        consuming.commit().await.unwrap();
    };
    let (swept, ()) = tokio::join!(sweep, goes_on);
    assert_eq!(swept.unwrap().abandoned, 1);
    assert_eq!(sale.numbers().await.taken, 0);
}

/// A topic that was made anew holds none of what was consumed: nothing can be said about what it lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_ends_before_what_was_consumed_decides_nothing() {
    let sale = Sale::start(100).await;
    sale.reserve(&sale.users(3)).await;
    grown_old(&sale, 1).await;
    let topic = sale.installation.naming.requests_topic();
    sale.execute(&format!("INSERT INTO consumed VALUES ('{topic}', 3, 1000000)"))
        .await;
    let swept = sweeper(&sale).sweep(&held(&sale).await).await;
    assert!(matches!(swept, Err(SweepError::AheadOfKafka(_))), "{swept:?}");
    assert_eq!(sale.numbers().await.taken, 3);
}

/// Retention took records that nobody had consumed, and nothing new comes into their partition.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_retention_has_removed_do_not_stop_the_sweeper() {
    let sale = Sale::start(100).await;
    let removed = sale.reserve(&sale.users(2)).await;
    let (partition, offset) = sale.publish_bytes(&removed.encode().unwrap()).await;
    sale.reserve(&sale.users(3)).await;
    remove_records(&sale, partition, offset + 1).await;
    let worker = sale.worker().await;
    eventually(LIMIT, "all are free", async || sale.numbers().await.taken == 0).await;
    let more = sale.claim_in_records_of(1, 20).await;
    sale.issued_are(&more).await;
    worker.stop().await;
}

async fn remove_records(sale: &Sale, partition: i32, before: i64) {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &sale.installation.kafka.kafka_brokers)
        .create()
        .unwrap();
    let mut offsets = TopicPartitionList::new();
    offsets
        .add_partition_offset(
            &sale.installation.naming.requests_topic(),
            partition,
            Offset::Offset(before),
        )
        .unwrap();
    admin.delete_records(&offsets, &AdminOptions::new()).await.unwrap();
}

/// One campaign's state is broken: the others are swept all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_cannot_be_read_does_not_stop_the_others() {
    let sale = Sale::start(100).await;
    let beside = sale.beside(terms(100)).await;
    // They are swept in the order of their names.
    let (broken, whole) = if sale.campaign.name.to_string() < beside.campaign.name.to_string() {
        (&sale, &beside)
    } else {
        (&beside, &sale)
    };
    whole.reserve(&whole.users(3)).await;
    grown_old(whole, 1).await;
    let mut connection = RedisServer::shared().await.unwrap().connection().await.unwrap();
    redis::cmd("SET")
        .arg(broken.installation.naming.state(&broken.campaign.name).pending)
        .arg("no zset")
        .exec_async(&mut connection)
        .await
        .unwrap();
    let swept = sweeper(whole).sweep(&held(whole).await).await.unwrap();
    assert_eq!((swept.abandoned, swept.failed), (1, 1));
    assert_eq!(whole.numbers().await.taken, 0);
}

async fn persist_without_settling(sale: &Sale, record: &ClaimRecord) {
    persist_with(sale, record, Default::default()).await;
}

/// Persists as a worker does whose claims the database refused.
async fn park(sale: &Sale, record: &ClaimRecord) {
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
    record: &ClaimRecord,
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
            rests_on: &[],
        })
        .await
        .unwrap();
}
