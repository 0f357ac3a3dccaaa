//! Real servers for the run, and installations on them.

use std::time::{Duration, Instant};

use campaign::{
    identity::{CampaignId, Instance, RequestId, UserId},
    kafka::producer::{Delivery, Outgoing, Producer},
    name::CampaignName,
    naming::Naming,
    postgres::campaign::{CampaignTerms, OnCancel, OnDeadLetter},
    record::{ClaimRecord, MAX_CLAIMS, RecordedClaim, VERSION},
    redis::state::{ReserveAnswer, ReserveOutcome},
};
use coupon::connections::{Connections, InstallationArguments};
use futures::{StreamExt, stream};
use sqlx::PgPool;
use testkit::{
    installation::{TestInstallation, campaign_name},
    kafka::{KafkaOptions, KafkaServer},
    postgres::{PostgresOptions, PostgresServer},
    redis::{RedisOptions, RedisServer},
};

use crate::error::{BenchError, Result};

/// As in production; the tests' shorter one would turn a slow moment of a small machine into errors.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Reserve calls and records under way while a backlog is made.
const BACKLOG_AT_ONCE: usize = 8;

const FLUSHED_WITHIN: Duration = Duration::from_secs(60);
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// The servers.
pub struct Stage {
    /// Redis.
    pub redis: RedisServer,
    /// Kafka.
    pub kafka: KafkaServer,
    /// Postgres.
    pub postgres: PostgresServer,
}

/// An installation of one measurement's own.
pub struct Installation {
    /// Where everything is.
    pub arguments: InstallationArguments,
    /// Names.
    pub naming: Naming,
    /// Connections as a process of the product has them.
    pub connections: Connections,
    /// A pool past the software.
    pub pool: PgPool,
}

impl Stage {
    /// Launches all three.
    pub async fn start() -> Result<Self> {
        let kafka = KafkaOptions {
            spare_listeners: 0,
            // A broker that runs for minutes is worth the optimizing compiler, and has memory.
            java: ["-XX:TieredStopAtLevel=4", "-Xms1g", "-Xmx1g"]
                .map(str::to_owned)
                .to_vec(),
            ..KafkaOptions::default()
        };
        let postgres = PostgresOptions::default().with("shared_buffers", "512MB");
        let (redis, kafka, postgres) = tokio::try_join!(
            RedisServer::start_with(RedisOptions::default()),
            KafkaServer::start_with(kafka),
            PostgresServer::start_with(postgres),
        )?;
        Ok(Self { redis, kafka, postgres })
    }

    /// A fresh installation. What others left in Redis goes: its memory counts, too.
    pub async fn installation(&self) -> Result<Installation> {
        self.flush().await?;
        let mut test = TestInstallation::on(self.redis.settings(), self.kafka.settings(), &self.postgres).await?;
        test.installation.publish_timeout = PUBLISH_TIMEOUT;
        let pool = PgPool::connect(&test.postgres.postgres_url).await?;
        let arguments = InstallationArguments {
            installation: test.installation,
            redis: test.redis,
            kafka: test.kafka,
            postgres: test.postgres,
        };
        Ok(Installation {
            connections: arguments.connect().await?,
            naming: test.naming,
            arguments,
            pool,
        })
    }

    /// Empties Redis and waits until its memory is free. In the background: millions of users would block it for seconds.
    pub async fn flush(&self) -> Result<()> {
        let mut connection = self.redis.connection().await?;
        redis::cmd("FLUSHALL")
            .arg("ASYNC")
            .query_async::<()>(&mut connection)
            .await?;
        let deadline = Instant::now() + FLUSHED_WITHIN;
        loop {
            let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
            if info.lines().any(|line| line.trim() == "lazyfree_pending_objects:0") {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(BenchError::Invalid(format!(
                    "Redis is not empty after {FLUSHED_WITHIN:?}"
                )));
            }
            tokio::time::sleep(FLUSH_POLL).await;
        }
    }

    /// The process ids of the servers, with their names. Postgres' sessions are processes of their own and not among
    /// them.
    pub fn processes(&self) -> Vec<(&'static str, u32)> {
        [("Redis", self.redis.pid()), ("Kafka", self.kafka.pid())]
            .into_iter()
            .filter_map(|(name, pid)| Some((name, pid?)))
            .collect()
    }
}

/// Terms of a campaign that is open and stays so.
pub fn terms(quantity: i64) -> CampaignTerms {
    CampaignTerms {
        quantity,
        ttl_ms: 24 * 3_600 * 1_000,
        opens_at: None,
        closes_at: None,
        paused: false,
        on_cancel: OnCancel::Restock,
        on_dead_letter: OnDeadLetter::Park,
        code_prefix: "BF26".to_owned(),
        valid_for_ms: Some(30 * 24 * 3_600 * 1_000),
        details: serde_json::json!({}),
    }
}

impl Installation {
    /// A campaign with its state ready.
    pub async fn campaign(&self, quantity: i64) -> Result<CampaignName> {
        let name = campaign_name();
        self.connections.aligner.apply(&name, &terms(quantity)).await?;
        Ok(name)
    }

    /// The id of a campaign.
    pub async fn id_of(&self, name: &CampaignName) -> Result<CampaignId> {
        Ok(self.connections.campaign(&name.to_string()).await?.id)
    }

    /// Reserves `count` slots, 256 a call, for users nobody else has.
    pub async fn reserve(&self, name: &CampaignName, count: usize) -> Result<()> {
        let instance = Instance::random();
        for (call, claims) in calls(&instance, count).enumerate() {
            let batch = instance.batch(call as u64);
            let answer = self.connections.state.reserve(name, &batch, &claims).await?;
            all_reserved(&answer)?;
        }
        Ok(())
    }

    /// What an intake does with `count` claims, without HTTP: reserved, and stored in Kafka.
    pub async fn backlog(&self, name: &CampaignName, count: usize) -> Result<()> {
        let producer = Producer::start(&self.arguments.kafka, PUBLISH_TIMEOUT * 4)?;
        let id = self.id_of(name).await?;
        let topic = self.naming.requests_topic();
        let instance = Instance::random();
        let stored = stream::iter(calls(&instance, count).enumerate().map(|(call, claims)| {
            let (producer, topic, instance) = (&producer, &topic, &instance);
            async move {
                let batch = instance.batch(call as u64);
                let answer = self.connections.state.reserve(name, &batch, &claims).await?;
                let reserved = all_reserved(&answer)?;
                let record = ClaimRecord {
                    v: VERSION,
                    campaign: name.clone(),
                    id,
                    epoch: reserved.epoch,
                    batch,
                    reserved_at: reserved.at_ms,
                    claims: (0..)
                        .zip(claims)
                        .map(|(i, (user_id, request_id))| RecordedClaim { i, user_id, request_id })
                        .collect(),
                };
                let value = record
                    .encode()
                    .map_err(|error| BenchError::Invalid(format!("a claim cannot be written: {error}")))?;
                let delivery = producer.send(&Outgoing {
                    topic,
                    value: &value,
                    ..Outgoing::default()
                });
                match delivery.await {
                    Ok(Delivery::Acknowledged { .. }) => Ok(()),
                    other => Err(BenchError::Invalid(format!("a claim was not stored: {other:?}"))),
                }
            }
        }))
        .buffer_unordered(BACKLOG_AT_ONCE);
        stored
            .collect::<Vec<Result<()>>>()
            .await
            .into_iter()
            .collect::<Result<()>>()
    }
}

/// Claims of users that follow from the instance, in calls of 256.
pub fn calls(instance: &Instance, count: usize) -> impl Iterator<Item = Vec<(UserId, RequestId)>> {
    (0..count).step_by(MAX_CLAIMS).map(move |first| {
        (first..count.min(first + MAX_CLAIMS))
            .filter_map(|user| Some((format!("{instance}-{user}").parse().ok()?, RequestId::fresh())))
            .collect()
    })
}

fn all_reserved(answer: &ReserveAnswer) -> Result<&campaign::redis::state::Reserved> {
    match answer {
        ReserveAnswer::Judged(reserved)
            if reserved
                .outcomes
                .iter()
                .all(|outcome| *outcome == ReserveOutcome::Success) =>
        {
            Ok(reserved)
        }
        other => Err(BenchError::Invalid(format!("not every claim got a slot: {other:?}"))),
    }
}
