//! The one error of this crate.

use std::io;

use campaign::{
    align::AlignError, kafka::client::KafkaError, name::NameError, naming::PrefixError,
    postgres::database::DatabaseError, rebuild::RebuildError, redis::connection::RedisError,
};
use coupon::connections::ConnectError;
use testkit::{child::ServerError, installation::InstallationError};

/// Why a measurement has no result. None of them is a slow system: a run that went wrong is no figure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A server that is launched for the run.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Topics, database or names of the run.
    #[error(transparent)]
    Installation(#[from] InstallationError),
    /// Connecting as a process of the product does.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Creating a campaign.
    #[error(transparent)]
    Align(#[from] AlignError),
    /// Rebuilding a state.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// A transition in Redis.
    #[error(transparent)]
    State(#[from] RedisError),
    /// A plain command to Redis.
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// Postgres through the product.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A plain statement.
    #[error("Postgres: {0}")]
    Sql(#[from] sqlx::Error),
    /// Kafka through the product.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// A plain client of Kafka.
    #[error("Kafka: {0}")]
    KafkaClient(#[from] rdkafka::error::KafkaError),
    /// A name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// A file, a socket or a process.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// As the system put it.
        source: io::Error,
    },
    /// A child's report is none.
    #[error("the report of {what} cannot be read: {source}")]
    Report {
        /// Which child.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// What was measured is not what was to be measured.
    #[error("{0}")]
    Invalid(String),
}

impl BenchError {
    /// For `map_err`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// What measurements answer.
pub type Result<T> = std::result::Result<T, BenchError>;
