//! Opens an installation that runs somewhere.

use campaign::{
    align::Aligner,
    kafka::client::KafkaError,
    name::{CampaignName, NameError},
    naming::{Naming, PrefixError},
    postgres::{
        campaign::CampaignRow,
        database::{Database, DatabaseError},
    },
    rebuild::Rebuilder,
    redis::{
        connection::{Redis, RedisError},
        state::StateStore,
    },
    settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings},
};
use clap::Args;

/// Flags of the commands that need all three servers.
#[derive(Clone, Debug, Args)]
pub struct InstallationArguments {
    /// Names and timeouts.
    #[command(flatten)]
    pub installation: InstallationSettings,
    /// Redis.
    #[command(flatten)]
    pub redis: RedisSettings,
    /// Kafka.
    #[command(flatten)]
    pub kafka: KafkaSettings,
    /// Postgres.
    #[command(flatten)]
    pub postgres: PostgresSettings,
}

/// Connections to an installation.
pub struct Connections {
    /// Names and timeouts.
    pub installation: InstallationSettings,
    /// Names.
    pub naming: Naming,
    /// The truth.
    pub database: Database,
    /// The state.
    pub state: StateStore,
    /// Applies, aligns and rebuilds.
    pub aligner: Aligner,
}

/// Why an installation cannot be opened, or a campaign not be found in it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The key prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// Redis.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Kafka.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// Postgres.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No live campaign has the name.
    #[error("there is no campaign {0}; create it with `coupon apply -f FILE`")]
    NoCampaign(CampaignName),
}

impl InstallationArguments {
    /// Connects and checks the schema.
    pub async fn connect(&self) -> Result<Connections, ConnectError> {
        let naming = self.installation.naming()?;
        let database = Database::connect(&self.postgres).await?;
        database.check_migrated().await?;
        let redis = Redis::connect(&self.redis).await?;
        let settle_after = self.installation.settle_after();
        let rebuilder = Rebuilder::new(redis, database.clone(), &self.kafka, naming.clone(), settle_after)?;
        Ok(Connections {
            installation: self.installation.clone(),
            naming,
            database,
            state: rebuilder.state.clone(),
            aligner: Aligner::new(rebuilder),
        })
    }
}

impl Connections {
    /// The live campaign of that name; a bare name means the installation's namespace.
    pub async fn campaign(&self, name: &str) -> Result<CampaignRow, ConnectError> {
        let name = CampaignName::parse(name, &self.installation.namespace)?;
        self.database
            .campaign(&name)
            .await?
            .ok_or(ConnectError::NoCampaign(name))
    }
}
