//! From the first click to the last row and the last event: the whole system, against a chain with one record a claim,
//! one partition a campaign and one row a transaction.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use campaign::{
    identity::RequestId,
    kafka::producer::{Delivery, Outgoing, Producer},
};
use rdkafka::{
    ClientConfig, Message,
    consumer::{CommitMode, Consumer, StreamConsumer},
};
use sqlx::{Connection, PgConnection};

use super::{Effort, door::CONNECTIONS, persist::issued};
use crate::{
    article::ArticleScript,
    client::ClientPlan,
    error::{BenchError, Result},
    plot::{Plot, Shape},
    program,
    report::{Findings, Section, rate},
    stage::{Installation, Stage},
};

const POLL: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(180);
/// Claims of the other chain under way at once.
const CLIENTS: usize = 64;
const LOCK_LIFE_MS: i64 = 10_000;

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let coupons = effort.size(100_000, 20_000);
    let few = effort.size(5_000, 1_500);
    let ours = whole_system(stage, coupons).await?;
    let theirs = one_by_one(stage, few).await?;
    let mut section = Section::new(
        "From first click to last row and last event",
        "The system with one intake and one worker and 256 connections; beside it a chain that reserves with the article's \
         script, publishes one record a claim into one partition, and persists one row a transaction under a lock.",
        &["", "coupons", "last answer", "last row", "last event", "rows/s"],
    );
    let per_second = |coupons: usize, took: Duration| coupons as f64 / took.as_secs_f64();
    let seconds = |took: Duration| format!("{:.1} s", took.as_secs_f64());
    section.row([
        "this system".to_owned(),
        rate(coupons as f64),
        seconds(ours.answers),
        seconds(ours.rows),
        seconds(ours.events),
        rate(per_second(coupons, ours.rows)),
    ]);
    section.row([
        "one by one".to_owned(),
        rate(few as f64),
        seconds(theirs.answers),
        seconds(theirs.rows),
        "–".to_owned(),
        rate(per_second(few, theirs.rows)),
    ]);
    let plot = Plot {
        title: "Rows/s from first click to last row".to_owned(),
        shape: Shape::Bars(vec![
            ("this system".to_owned(), per_second(coupons, ours.rows)),
            ("one by one".to_owned(), per_second(few, theirs.rows)),
        ]),
    };
    Ok(Findings {
        ratios: Vec::new(),
        sections: vec![section.with_plot("chain.svg", plot)],
    })
}

/// From the first click to …
struct Chain {
    answers: Duration,
    rows: Duration,
    events: Duration,
}

async fn whole_system(stage: &Stage, coupons: usize) -> Result<Chain> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(coupons as i64).await?;
    let intake = program::intake(&installation.arguments, &[], &[]).await?;
    let worker = program::worker(&installation.arguments).await?;
    let plan = ClientPlan {
        targets: vec![intake.address],
        campaign: campaign.to_string(),
        connections: CONNECTIONS,
        user_prefix: "click-".to_owned(),
        warmup: 0.0,
        seconds: LIMIT.as_secs_f64(),
        rate: None,
        requests: Some(coupons as u64),
    };
    let client = plan.start()?;
    let watching = async {
        let deadline = Instant::now() + LIMIT;
        let mut rows = None;
        loop {
            let now = jiff::Timestamp::now().as_millisecond();
            if rows.is_none() && issued(&installation.pool, &campaign).await? >= coupons as i64 {
                rows = Some(now);
            }
            if let Some(rows) = rows
                && worker.metric("coupon_worker_events_projected_total").await? >= coupons as f64
            {
                return Ok((rows, now));
            }
            if Instant::now() > deadline {
                return Err(BenchError::Invalid(format!(
                    "{coupons} coupons took longer than {LIMIT:?}"
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    };
    let (report, watched) = tokio::join!(client.report(), watching);
    let (report, (rows, events)) = (report?.only(202)?, watched?);
    worker.stop().await?;
    intake.stop().await?;
    let since = |ms: i64| Duration::from_millis(u64::try_from(ms - report.began_at_ms).unwrap_or_default());
    Ok(Chain {
        answers: Duration::from_secs_f64(report.seconds),
        rows: since(rows),
        events: since(events),
    })
}

async fn one_by_one(stage: &Stage, coupons: usize) -> Result<Chain> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(coupons as i64).await?;
    let id = installation.id_of(&campaign).await?;
    let consumer = consumer_of(&installation)?;
    let began = Instant::now();
    let claiming = async {
        claim_all(stage, &installation, coupons).await?;
        Ok::<Duration, BenchError>(began.elapsed())
    };
    let persisting = async {
        let mut postgres = PgConnection::connect(&installation.arguments.postgres.postgres_url).await?;
        let mut redis = stage.redis.connection().await?;
        for _ in 0..coupons {
            let message = tokio::time::timeout(LIMIT, consumer.recv())
                .await
                .map_err(|_| BenchError::Invalid("no record came".to_owned()))??;
            let user = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
            let lock = format!("article:lock:{campaign}");
            redis::cmd("SET")
                .arg(&lock)
                .arg("worker")
                .arg("NX")
                .arg("PX")
                .arg(LOCK_LIFE_MS)
                .query_async::<redis::Value>(&mut redis)
                .await?;
            persist_one(&mut postgres, id.0, &user).await?;
            redis::cmd("DEL").arg(&lock).query_async::<()>(&mut redis).await?;
            consumer.commit_message(&message, CommitMode::Async)?;
        }
        Ok::<Duration, BenchError>(began.elapsed())
    };
    let (answers, rows) = tokio::try_join!(claiming, persisting)?;
    Ok(Chain {
        answers,
        rows,
        events: rows,
    })
}

fn consumer_of(installation: &Installation) -> Result<StreamConsumer> {
    let topic = installation.naming.requests_topic();
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", &installation.arguments.kafka.kafka_brokers)
        .set("group.id", format!("{topic}.one-by-one"))
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()?;
    consumer.subscribe(&[&topic])?;
    Ok(consumer)
}

/// Reserves with the article's script, then publishes with the campaign as key: one partition.
async fn claim_all(stage: &Stage, installation: &Installation, coupons: usize) -> Result<()> {
    let producer = Arc::new(Producer::start(&installation.arguments.kafka, Duration::from_secs(10))?);
    let topic = installation.naming.requests_topic();
    let mut connection = stage.redis.connection().await?;
    let script = ArticleScript::load(&mut connection, installation.naming.prefix()).await?;
    let clients = (0..CLIENTS).map(|client| {
        let (mut connection, script, producer, topic) = (connection.clone(), &script, &producer, &topic);
        async move {
            for user in (client..coupons).step_by(CLIENTS) {
                let user = format!("user-{user}");
                let answer: i64 = script.call(&user, coupons as i64).query_async(&mut connection).await?;
                let delivery = producer.send(&Outgoing {
                    topic,
                    key: Some(b"the campaign"),
                    value: user.as_bytes(),
                    ..Outgoing::default()
                });
                if answer != 0 || !matches!(delivery.await, Ok(Delivery::Acknowledged { .. })) {
                    return Err(BenchError::Invalid("a claim was not accepted".to_owned()));
                }
            }
            Ok(())
        }
    });
    futures::future::try_join_all(clients).await?;
    Ok(())
}

async fn persist_one(postgres: &mut PgConnection, campaign: uuid::Uuid, user: &str) -> Result<()> {
    let id = RequestId::fresh();
    let mut transaction = postgres.begin().await?;
    sqlx::query("UPDATE campaign SET issued = issued + 1 WHERE id = $1 AND issued < quantity")
        .bind(campaign)
        .execute(&mut *transaction)
        .await?;
    sqlx::query(
        "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at) \
         VALUES ($1, $2, $3, $4, '', now())",
    )
    .bind(id.0)
    .bind(campaign)
    .bind(user)
    .bind(id.to_string())
    .execute(&mut *transaction)
    .await?;
    sqlx::query(
        "INSERT INTO outbox (type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
         VALUES ('COUPON_ISSUED', $1, $2, '', $3, now())",
    )
    .bind(id.0)
    .bind(campaign)
    .bind(user)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}
