//! Rebuilds a campaign's state in Redis from Postgres and from the claims that are still in Kafka.

use std::time::Duration;

use crate::{
    identity::Epoch,
    kafka::{client::KafkaError, offsets::TopicReader},
    name::CampaignName,
    naming::Naming,
    postgres::database::{Database, DatabaseError},
    redis::{connection::RedisError, lock::Locks, state::StateStore},
};

/// Rebuilds states.
#[derive(Clone)]
pub struct Rebuilder {
    /// The state to write.
    pub state: StateStore,
    /// For `COUPON_ISSUE_STATE_INIT`.
    pub locks: Locks,
    /// The truth.
    pub database: Database,
    /// Claims not yet persisted.
    pub reader: TopicReader,
    /// Names of the installation.
    pub naming: Naming,
    /// `publishTimeout` plus the clock margin.
    pub settle_after: Duration,
}

/// What a rebuild came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// The state is new.
    Done {
        /// Its life.
        epoch: Epoch,
        /// Users in it.
        users: u64,
        /// How long the door was shut.
        took: Duration,
    },
    /// Somebody else has done it, or is doing it.
    NotNeeded,
    /// A later rebuild overtook this one.
    Superseded,
    /// There is no live campaign of that name.
    NoCampaign,
}

/// Why a rebuild stopped; the state stays shut or missing, and the next one starts anew.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// Redis.
    #[error("rebuild: {0}")]
    Redis(#[from] RedisError),
    /// Postgres.
    #[error("rebuild: {0}")]
    Database(#[from] DatabaseError),
    /// Kafka.
    #[error("rebuild: {0}")]
    Kafka(#[from] KafkaError),
    /// What Postgres has consumed and what Kafka holds do not fit together.
    #[error("rebuild: {0}")]
    Inconsistent(String),
}

/// Whether a state that is there is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only a missing one (or one of another server or epoch, or one left `rebuilding`).
    IfMissing,
    /// In any case.
    Always,
}

impl Rebuilder {
    /// Rebuilds one campaign's state.
    pub async fn rebuild(&self, campaign: &CampaignName, force: Force) -> Result<Rebuilt, RebuildError> {
        let _ = (campaign, force);
        unimplemented!()
    }
}
