//! The servers behind the campaigns. The operator starts without them, so that it can say in a status what is out and
//! let an object go by force.

use std::{sync::Arc, time::Duration};

use campaign::{
    align::Aligner,
    kafka::client::KafkaError,
    naming::PrefixError,
    postgres::database::{Database, DatabaseError},
    rebuild::Rebuilder,
    redis::{
        connection::{Redis, RedisError},
        preflight,
    },
};
use tokio::sync::watch;

use crate::settings::OperatorSettings;

/// Between two tries to connect.
const RETRY: Duration = Duration::from_secs(2);

/// Connections to all of them.
#[derive(Clone)]
pub struct Servers {
    /// Applies, aligns and rebuilds; holds the connections.
    pub aligner: Aligner,
}

/// Why there are no connections yet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The key prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// Redis is not there, or not set as it must be.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Kafka's settings.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// Postgres is not there, or not migrated.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl Servers {
    /// Connects and checks what the promise rests on.
    pub async fn connect(settings: &OperatorSettings) -> Result<Self, ConnectError> {
        let naming = settings.installation.naming()?;
        let database = Database::connect(&settings.postgres).await?;
        database.check_migrated().await?;
        let redis = Redis::connect(&settings.redis).await?;
        preflight::check(&redis).await?;
        let settle_after = settings.installation.settle_after();
        let rebuilder = Rebuilder::new(redis, database, &settings.kafka, naming, settle_after)?;
        Ok(Self {
            aligner: Aligner::new(rebuilder),
        })
    }
}

/// The connections, or why there are none yet. They heal by themselves once they were made.
#[derive(Clone)]
pub struct Connected(watch::Receiver<Result<Servers, Arc<str>>>);

impl Connected {
    /// Connections that are there.
    pub fn to(servers: Servers) -> Self {
        Self(watch::channel(Ok(servers)).1)
    }

    /// None, for this reason.
    pub fn to_nothing(reason: &str) -> Self {
        Self(watch::channel(Err(reason.into())).1)
    }

    /// Tries until it succeeds, beside everything else; ends with the last clone.
    pub fn in_background(settings: OperatorSettings) -> Self {
        let (sender, receiver) = watch::channel(Err("the servers are being connected to".into()));
        tokio::spawn(async move {
            while !sender.is_closed() {
                match Servers::connect(&settings).await {
                    Ok(servers) => {
                        tracing::info!("connected to Redis and Postgres");
                        let _ = sender.send(Ok(servers));
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "servers cannot be connected to; tries again");
                        let _ = sender.send(Err(error.to_string().into()));
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        });
        Self(receiver)
    }

    /// As it is now.
    pub fn now(&self) -> Result<Servers, String> {
        self.0.borrow().clone().map_err(|reason| reason.to_string())
    }
}
