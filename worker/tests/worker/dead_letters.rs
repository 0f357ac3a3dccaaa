//! What cannot be persisted.

use std::time::Duration;

use campaign::{
    postgres::{
        campaign::OnDeadLetter,
        parked::{ParkedClaim, Replay},
        persist::Reason,
    },
    record::ClaimRecord,
};
use rdkafka::{
    ClientConfig, Message,
    admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    message::Headers,
};
use testkit::eventually::eventually;

use crate::fixture::{LIMIT, Sale, TestWorker, requests, terms};

/// A dead letter as somebody would find it in the topic.
struct Letter {
    value: Vec<u8>,
    headers: std::collections::HashMap<String, String>,
}

/// Waits until the dead letter topic has `count` records.
async fn letters(sale: &Sale, count: usize) -> Vec<Letter> {
    let (topic, brokers) = (
        sale.installation.naming.dlq_topic(),
        sale.installation.kafka.kafka_brokers.clone(),
    );
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", format!("{topic}-reader"))
            .set("auto.offset.reset", "earliest")
            .create()
            .unwrap();
        consumer.subscribe(&[&topic]).unwrap();
        let begun = std::time::Instant::now();
        let mut letters = Vec::new();
        while letters.len() < count {
            assert!(begun.elapsed() < LIMIT, "{} of {count} dead letters", letters.len());
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            letters.push(Letter {
                value: message.payload().unwrap_or_default().to_vec(),
                headers: message
                    .headers()
                    .unwrap()
                    .iter()
                    .map(|header| {
                        let value = String::from_utf8(header.value.unwrap().to_vec()).unwrap();
                        (header.key.to_owned(), value)
                    })
                    .collect(),
            });
        }
        letters
    })
    .await
    .unwrap()
}

/// From now on the broker refuses dead letters of more bytes.
async fn limit_dead_letters(sale: &Sale, bytes: u32) {
    let (topic, bytes) = (sale.installation.naming.dlq_topic(), bytes.to_string());
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &sale.installation.kafka.kafka_brokers)
        .create()
        .unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic(&topic)).set("max.message.bytes", &bytes);
    for changed in admin.alter_configs([&change], &AdminOptions::new()).await.unwrap() {
        changed.unwrap();
    }
}

/// From now on the database refuses coupons of users for whom this SQL condition holds.
async fn refuse_users(sale: &Sale, condition: &str) {
    sale.execute(&format!(
        "ALTER TABLE coupon ADD CONSTRAINT refused CHECK (NOT ({condition})) NOT VALID"
    ))
    .await;
}

async fn accept_users(sale: &Sale) {
    sale.execute("ALTER TABLE coupon DROP CONSTRAINT refused").await;
}

async fn parked(sale: &Sale, count: usize) -> Vec<ParkedClaim> {
    eventually(LIMIT, format!("{count} parked"), async || {
        let parked = sale.database.parked(Some(sale.campaign.id)).await.unwrap();
        (parked.len() == count).then_some(parked)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_record_go_to_the_dead_letters_as_they_came() {
    let sale = Sale::start(10).await;
    let mut without_user = serde_json::to_value(sale.forged(&sale.users(1))).unwrap();
    without_user["claims"][0].as_object_mut().unwrap().remove("userId");
    let poison = [b"{".to_vec(), Vec::new(), serde_json::to_vec(&without_user).unwrap()];
    let mut places = std::collections::HashMap::new();
    for value in &poison {
        places.insert(value.clone(), sale.publish_bytes(value).await);
    }
    let records = sale.claim_in_records_of(1, 5).await;
    let _worker = sale.worker().await;
    sale.issued_are(&records).await;
    sale.settled().await;
    let letters = letters(&sale, 3).await;
    for letter in letters {
        let (partition, offset) = places.remove(&letter.value).expect("as it came, once");
        assert_eq!(letter.headers["partition"], partition.to_string());
        assert_eq!(letter.headers["offset"], offset.to_string());
        assert_eq!(letter.headers["topic"], sale.installation.naming.requests_topic());
        assert!(
            letter.headers["reason"].contains("claim record"),
            "{:?}",
            letter.headers
        );
        assert!(letter.headers.contains_key("attempts") && letter.headers.contains_key("first-failure"));
    }
}

/// The offset moves only after the dead letter is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_past_a_dead_letter_that_kafka_has_not_acknowledged() {
    let sale = Sale::start(1_000).await;
    limit_dead_letters(&sale, 1).await;
    let worker = sale.worker().await;
    let (partition, offset) = sale.publish_bytes(b"{").await;
    let consumed = async || {
        let consumed = sale.database.consumed(&sale.installation.naming.requests_topic()).await;
        consumed.unwrap().get(&partition).copied().unwrap_or(0)
    };
    // What comes behind it, in its partition too, is issued and does not take the offset along.
    let mut behind = Vec::new();
    while !behind.iter().any(|&(_, at)| at == partition) {
        let record = sale.reserve(&sale.users(1)).await;
        let (at, _) = sale.publish_bytes(&record.encode().unwrap()).await;
        behind.push((record, at));
    }
    let records: Vec<ClaimRecord> = behind.into_iter().map(|(record, _)| record).collect();
    sale.issued_are(&records).await;
    let tried = worker.metric("coupon_worker_retries_total{kind=\"dead_letter\"}");
    eventually(LIMIT, "the dead letter was tried and tried again", async || {
        worker.metric("coupon_worker_retries_total{kind=\"dead_letter\"}") >= tried + 2.0
    })
    .await;
    assert_eq!(consumed().await, offset);
    assert_eq!(worker.metric("coupon_worker_dead_letters_total{kind=\"bytes\"}"), 0.0);

    limit_dead_letters(&sale, 1_000_000).await;
    eventually(LIMIT, "the offset has moved", async || consumed().await > offset).await;
    assert_eq!(worker.metric("coupon_worker_dead_letters_total{kind=\"bytes\"}"), 1.0);
    assert!(letters(&sale, 1).await.iter().all(|letter| letter.value == b"{"));
    sale.consumed_all().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_claim_is_parked_and_the_others_of_its_record_are_issued() {
    let sale = Sale::start(20).await;
    let record = sale.reserve(&sale.users(10)).await;
    let bad = record.claims[3].clone();
    refuse_users(&sale, &format!("user_id = '{}'", bad.user_id)).await;
    sale.publish(&record).await;
    let others = sale.claim_in_records_of(2, 6).await;
    let worker = sale.worker().await;
    let entries = parked(&sale, 1).await;
    assert_eq!(entries[0].request, bad.request_id);
    assert_eq!(entries[0].user, bad.user_id);
    sale.settled().await;
    let mut wanted = requests(&others);
    wanted.extend(requests(std::slice::from_ref(&record)));
    wanted.remove(&bad.request_id);
    assert_eq!(sale.issued().await, wanted);
    assert!(sale.holds(&bad.user_id).await, "its slot stays taken");

    let letter = letters(&sale, 1).await.remove(0);
    let one = ClaimRecord::decode(&letter.value).unwrap();
    assert_eq!(one.claims, vec![bad.clone()]);
    assert_eq!(one.batch, record.batch);
    assert_eq!(letter.headers["attempts"], "5");
    assert_eq!(worker.metric("coupon_worker_dead_letters_total{kind=\"claim\"}"), 1.0);

    // Repaired and replayed, it is a coupon after all.
    accept_users(&sale).await;
    let reservation = record.reservation(&bad);
    assert_eq!(
        sale.database
            .replay_parked(sale.campaign.id, &reservation)
            .await
            .unwrap(),
        Replay::Issued
    );
    assert!(sale.issued().await.contains(&bad.request_id));
    sale.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_claim_of_a_releasing_campaign_gives_its_slot_back() {
    let mut releasing = terms(20);
    releasing.on_dead_letter = OnDeadLetter::Release;
    let sale = Sale::with(releasing).await;
    let record = sale.reserve(&sale.users(4)).await;
    let bad = record.claims[0].clone();
    refuse_users(&sale, &format!("user_id = '{}'", bad.user_id)).await;
    sale.publish(&record).await;
    let worker = sale.worker().await;
    sale.settled().await;
    assert_eq!(sale.issued().await.len(), 3);
    assert!(!sale.holds(&bad.user_id).await);
    assert_eq!(
        sale.database.rejection(bad.request_id, &bad.user_id).await.unwrap(),
        Some(Reason::DeadLettered)
    );
    assert_eq!(letters(&sale, 1).await.len(), 1);
    assert_eq!(
        worker.metric("coupon_worker_success_revoked_total{reason=\"DEAD_LETTERED\"}"),
        1.0
    );
}

/// A bad deploy must not dead-letter a sale.
#[tokio::test(flavor = "multi_thread")]
async fn when_every_row_is_refused_few_are_dead_and_the_rest_waits() {
    let sale = Sale::start(200).await;
    let beside = sale.beside(terms(50)).await;
    refuse_users(&sale, &format!("campaign_id = '{}'", sale.campaign.id)).await;
    let mut records = sale.claim_in_records_of(8, 160).await;
    records.extend(sale.claim_in_records_of(1, 40).await);
    let worker = sale.worker().await;
    eventually(LIMIT, "the campaign waits", async || {
        worker.metric("coupon_worker_campaigns_waiting") == 1.0
    })
    .await;
    let others = beside.claim(20).await;
    beside.issued_are(&others).await;
    accept_users(&sale).await;
    eventually(LIMIT, "all but the dead ones have rows", async || {
        let dead = sale.database.parked(None).await.unwrap().len();
        sale.issued().await.len() + dead == 200
    })
    .await;
    let dead = sale.database.parked(None).await.unwrap();
    assert!(!dead.is_empty() && dead.len() <= 20, "{} dead letters", dead.len());
    assert!(worker.metric("coupon_worker_dead_letters_total{kind=\"claim\"}") <= 20.0);
    sale.settled().await;
    for entry in dead {
        let replayed = sale.database.replay_parked(sale.campaign.id, &entry.reservation).await;
        assert_eq!(replayed.unwrap(), Replay::Issued);
    }
    assert_eq!(sale.issued().await, requests(&records));
    sale.settled().await;
}

/// A commit whose answer was lost has made the row: when the tries are used up afterwards, it is looked up first.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_has_its_row_is_never_given_up() {
    let mut releasing = terms(20);
    releasing.on_dead_letter = OnDeadLetter::Release;
    let sale = Sale::with(releasing).await;
    let server = testkit::postgres::PostgresServer::shared().await.unwrap();
    let proxy = testkit::proxy::Proxy::to(server.port()).await.unwrap();
    let mut settings = sale.settings();
    settings.postgres.postgres_url = proxy.through(&settings.postgres.postgres_url, server.port());
    let worker = TestWorker::start(settings).await;
    let key = sale.installation.naming.issue_lock(&sale.campaign.name);
    let held = sale
        .locks
        .try_acquire(&key, Duration::from_secs(30), 0)
        .await
        .unwrap()
        .unwrap();
    let records = sale.claim(3).await;
    eventually(LIMIT, "the worker has read it", async || {
        worker.metric("coupon_worker_backlog_claims") == 3.0
    })
    .await;
    proxy.replies(testkit::proxy::Treatment::Hold);
    held.release().await.unwrap();
    // The commit has come, and its answer is held: the cut loses it.
    proxy
        .step_until(LIMIT, "the rows are there", async || {
            sale.issued().await == requests(&records)
        })
        .await;
    proxy.cut();
    refuse_users(&sale, "true").await;
    proxy.restore();
    sale.settled().await;
    assert_eq!(sale.issued().await, requests(&records));
    for claim in &records[0].claims {
        assert!(sale.holds(&claim.user_id).await);
    }
    assert_eq!(
        sale.number("SELECT count(*) FROM rejection WHERE campaign_id = $1")
            .await,
        0
    );
    worker.stop().await;
}
