//! An installation of one test's own on the shared servers: its key prefix (hence keys, topics and groups), its
//! database. So all tests run beside each other.

use std::time::Duration;

use campaign::{
    kafka::{client::KafkaError, topics},
    name::CampaignName,
    naming::{Naming, PrefixError},
    postgres::database::{Database, DatabaseError},
    redis::connection::{Redis, RedisError},
    settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings},
};

use crate::{child::ServerError, kafka::KafkaServer, postgres::PostgresServer, redis::RedisServer};

/// Longer than any answer takes on a busy machine that comes at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// What went wrong with setting an installation up.
#[derive(Debug, thiserror::Error)]
pub enum InstallationError {
    /// A server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Creating the topics.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// Connecting to the database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Connecting to Redis.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// A prefix that is none.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

/// Settings of one installation. Replace a field to put a proxy or a server of one's own in place of a shared one.
#[derive(Clone, Debug)]
pub struct TestInstallation {
    /// Names and timeouts.
    pub installation: InstallationSettings,
    /// The names that follow from it.
    pub naming: Naming,
    /// Redis.
    pub redis: RedisSettings,
    /// Kafka.
    pub kafka: KafkaSettings,
    /// A fresh, migrated database.
    pub postgres: PostgresSettings,
}

impl TestInstallation {
    /// All three shared servers, with the topics created and the database migrated.
    pub async fn start() -> Result<Self, InstallationError> {
        let (redis, kafka, postgres) =
            tokio::try_join!(RedisServer::shared(), KafkaServer::shared(), PostgresServer::shared())?;
        Self::on(redis.settings(), kafka.settings(), postgres).await
    }

    /// The same for a test that waits for no timeout.
    pub async fn patient() -> Result<Self, InstallationError> {
        Ok(Self::start().await?.patiently())
    }

    /// With timeouts that only a lost answer comes to.
    pub fn patiently(mut self) -> Self {
        self.installation.publish_timeout = PATIENCE;
        self.redis.redis_timeout = PATIENCE;
        self
    }

    /// On these servers.
    pub async fn on(
        redis: RedisSettings,
        kafka: KafkaSettings,
        postgres: &PostgresServer,
    ) -> Result<Self, InstallationError> {
        let installation = installation_settings();
        let naming = installation.naming()?;
        topics::create(&kafka, &naming, 1).await?;
        Ok(Self {
            postgres: postgres.fresh_database().await?.settings,
            installation,
            naming,
            redis,
            kafka,
        })
    }

    /// A connection to its Redis.
    pub async fn redis(&self) -> Result<Redis, InstallationError> {
        Ok(Redis::connect(&self.redis).await?)
    }

    /// A pool on its database.
    pub async fn database(&self) -> Result<Database, InstallationError> {
        Ok(Database::connect(&self.postgres).await?)
    }
}

/// Settings of an installation whose prefix nobody else has, with timeouts that tests can wait for.
pub fn installation_settings() -> InstallationSettings {
    InstallationSettings {
        key_prefix: format!("test-{}", random_suffix()),
        namespace: "default".to_owned(),
        publish_timeout: Duration::from_secs(2),
        clock_margin: Duration::from_millis(200),
        dev: true,
    }
}

/// A campaign name that nobody else has.
pub fn campaign_name() -> CampaignName {
    let name = format!("sale-{}", random_suffix());
    CampaignName::new("default", &name).unwrap_or_else(|error| panic!("{error}"))
}

fn random_suffix() -> String {
    let mut text = uuid::Uuid::new_v4().simple().to_string();
    text.truncate(12);
    text
}
