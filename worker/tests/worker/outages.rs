//! Servers that go away and come back.

use campaign::settings::RedisMode;
use testkit::{
    eventually::eventually, installation::TestInstallation, kafka::KafkaServer, postgres::PostgresServer, proxy::Proxy,
    redis::RedisServer,
};

use crate::fixture::{self, LIMIT, Sale, TestWorker};

/// The answers to everything, commits among them, are lost for a while: what was written is found, nothing is written
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn commits_whose_answers_were_lost_are_found() {
    let sale = Sale::start(5_000).await;
    let server = PostgresServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let mut settings = sale.settings();
    settings.postgres.postgres_url = proxy.through(&settings.postgres.postgres_url, server.port());
    settings.tuning.batch_claims = 20;
    let records = sale.claim_in_records_of(5, 2_000).await;
    let worker = TestWorker::start(settings).await;
    for share in [100, 500, 1_000, 1_500] {
        eventually(LIMIT, format!("{share} rows"), async || {
            sale.issued().await.len() >= share
        })
        .await;
        proxy.drop_replies();
        // The server works on without being heard, at least once.
        proxy.cut();
        proxy.restore();
    }
    sale.issued_are(&records).await;
    sale.settled().await;
    assert_eq!(worker.get("/livez").await.0, 200);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_is_out_claims_wait_and_liveness_stays_green() {
    let sale = Sale::start(1_000).await;
    let server = PostgresServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let mut settings = sale.settings();
    settings.postgres.postgres_url = proxy.through(&settings.postgres.postgres_url, server.port());
    let worker = TestWorker::start(settings).await;
    let mut records = sale.claim(100).await;
    sale.issued_are(&records).await;
    proxy.shut().await;
    records.extend(sale.claim(100).await);
    eventually(LIMIT, "it tries again", async || {
        worker.metric("coupon_worker_retries_total{kind=\"postgres\"}") >= 2.0
    })
    .await;
    assert_eq!(worker.get("/livez").await.0, 200);
    assert_eq!(worker.get("/readyz").await.0, 503);
    assert_eq!(sale.issued().await.len(), 100);
    proxy.restore();
    sale.issued_are(&records).await;
    sale.settled().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_out_claims_wait() {
    let sale = Sale::start(1_000).await;
    let server = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let mut settings = sale.settings();
    assert_eq!(settings.redis.redis_mode, RedisMode::Single);
    settings.redis = proxy.redis_settings();
    let worker = TestWorker::start(settings).await;
    let mut records = sale.claim(100).await;
    sale.issued_are(&records).await;
    proxy.shut().await;
    records.extend(sale.claim(100).await);
    eventually(LIMIT, "it tries again", async || {
        worker.metric("coupon_worker_retries_total{kind=\"redis\"}") >= 2.0
    })
    .await;
    assert_eq!(worker.get("/livez").await.0, 200);
    proxy.restore();
    sale.issued_are(&records).await;
    sale.settled().await;
    worker.stop().await;
}

/// Postgres was put back to an older copy: the offsets go back with the rows, and the rows come back from Kafka.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_restore_has_lost_come_back_from_kafka() {
    let sale = Sale::start(1_000).await;
    let worker = sale.worker().await;
    let mut records = sale.claim_in_records_of(5, 100).await;
    sale.issued_are(&records).await;
    sale.settled().await;
    let topic = sale.installation.naming.requests_topic();
    let copy = sale.database.consumed(&topic).await.unwrap();
    let lost = sale.claim_in_records_of(5, 100).await;
    records.extend(lost.clone());
    sale.issued_are(&records).await;
    sale.settled().await;

    // In one transaction, as a copy is.
    let mut restore = sale.pool.begin().await.unwrap();
    let ids: Vec<_> = crate::fixture::requests(&lost)
        .into_iter()
        .map(|request| request.0)
        .collect();
    let batches: Vec<String> = lost.iter().map(|record| record.batch.to_string()).collect();
    for (statement, id) in [
        ("SELECT 1 FROM campaign WHERE id = $1 FOR UPDATE", sale.campaign.id.0),
        (
            "UPDATE campaign SET issued = issued - 100 WHERE id = $1",
            sale.campaign.id.0,
        ),
    ] {
        sqlx::query(statement).bind(id).execute(&mut *restore).await.unwrap();
    }
    sqlx::query("DELETE FROM coupon WHERE id = ANY($1)")
        .bind(&ids)
        .execute(&mut *restore)
        .await
        .unwrap();
    sqlx::query("DELETE FROM batch WHERE batch = ANY($1)")
        .bind(&batches)
        .execute(&mut *restore)
        .await
        .unwrap();
    sqlx::query("DELETE FROM consumed WHERE topic = $1")
        .bind(&topic)
        .execute(&mut *restore)
        .await
        .unwrap();
    for (partition, offset) in copy {
        sqlx::query("INSERT INTO consumed (topic, partition, next_offset) VALUES ($1, $2, $3)")
            .bind(&topic)
            .bind(partition)
            .bind(offset)
            .execute(&mut *restore)
            .await
            .unwrap();
    }
    restore.commit().await.unwrap();

    sale.issued_are(&records).await;
    sale.settled().await;
    worker.stop().await;
}

/// The same, while an earlier record of the partition belongs to a campaign that is held up: the offset stands where it
/// stood when the copy was made, and still the rows behind it come back.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_restore_has_lost_come_back_although_the_offset_has_not_moved() {
    let held_up = Sale::start(10).await;
    let sale = held_up.beside(fixture::terms(1_000)).await;
    let lock = sale
        .locks
        .acquire(
            &held_up.installation.naming.issue_lock(&held_up.campaign.name),
            LIMIT,
            0,
            LIMIT,
        )
        .await
        .unwrap()
        .unwrap();
    let first = held_up.reserve(&held_up.users(1)).await;
    let (partition, offset) = held_up.publish_bytes(&first.encode().unwrap()).await;
    // Until one lies behind the record that is held up.
    let mut records = Vec::new();
    loop {
        let record = sale.reserve(&sale.users(1)).await;
        let place = sale.publish_bytes(&record.encode().unwrap()).await;
        records.push(record);
        if place.0 == partition && place.1 > offset {
            break;
        }
    }
    let worker = sale.worker().await;
    sale.issued_are(&records).await;
    eventually(LIMIT, "they are settled", async || sale.numbers().await.pending == 0).await;
    let consumed = async || {
        let topic = sale.installation.naming.requests_topic();
        let consumed = sale.database.consumed(&topic).await.unwrap();
        consumed.get(&partition).copied().unwrap_or(0)
    };
    assert!(consumed().await <= offset, "it waits for the campaign that is held up");

    // In one transaction, as a copy is. The offset of that partition is the same before and after.
    let lost = records.last().unwrap();
    let mut restore = sale.pool.begin().await.unwrap();
    sqlx::query("UPDATE campaign SET issued = issued - 1 WHERE id = $1")
        .bind(sale.campaign.id.0)
        .execute(&mut *restore)
        .await
        .unwrap();
    for (statement, id) in [
        (
            "DELETE FROM coupon WHERE id::text = $1",
            lost.claims[0].request_id.to_string(),
        ),
        ("DELETE FROM batch WHERE batch = $1", lost.batch.to_string()),
    ] {
        sqlx::query(statement).bind(id).execute(&mut *restore).await.unwrap();
    }
    restore.commit().await.unwrap();
    assert_eq!(sale.issued().await.len(), records.len() - 1);

    lock.release().await.unwrap();
    held_up.issued_are(std::slice::from_ref(&first)).await;
    sale.issued_are(&records).await;
    sale.consumed_all().await;
    worker.stop().await;
}

/// A cluster of which no broker counts as alive, as for moments of an upgrade, answers without one. The client library then
/// forgets every broker for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_told_of_no_broker_is_found_again() {
    let mut kafka = KafkaServer::start().await.unwrap();
    let installation = TestInstallation::on(
        RedisServer::shared().await.unwrap().settings(),
        kafka.settings(),
        PostgresServer::shared().await.unwrap(),
    );
    let sale = Sale::on(installation.await.unwrap(), fixture::terms(1_000)).await;
    let worker = sale.worker().await;
    let mut records = sale.claim(100).await;
    sale.issued_are(&records).await;

    // Its only broker counts as dead for most of the time between two of its heartbeats.
    let seldom_alive = [
        ("broker.heartbeat.interval.ms", "5000"),
        ("broker.session.timeout.ms", "1000"),
    ];
    kafka.restart_with(&seldom_alive).await.unwrap();
    eventually(LIMIT, "both consumers were made anew", async || {
        worker.metric("coupon_worker_consumers_renewed_total") >= 2.0
    })
    .await;

    kafka.restart().await.unwrap();
    eventually(
        LIMIT,
        "it has its brokers again, also with nothing to send",
        async || worker.get("/readyz").await.0 == 200,
    )
    .await;
    records.extend(sale.claim(100).await);
    sale.issued_are(&records).await;
    sale.activity_is(200, LIMIT).await;
    worker.stop().await;
}
