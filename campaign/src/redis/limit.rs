//! The cluster-wide processing limit: permits a second for all workers of the installation.

use std::time::Duration;

use super::{
    answer::Answer,
    connection::{Redis, RedisError},
    script,
};
use crate::naming::Naming;

/// A stored rate that nobody has asked for in this time is forgotten.
const STORED_RATE_LIFE_MS: i64 = 30 * 24 * 3600 * 1000;

/// Asks for permits.
#[derive(Clone)]
pub struct ProcessingLimit {
    redis: Redis,
    rate_key: String,
    log_key: String,
    used_key: String,
    default_rate: u32,
}

/// What a request for permits came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// How many; may be fewer than asked for, also 0.
    pub permits: u32,
    /// If fewer: when more will be free.
    pub retry_after: Duration,
}

impl ProcessingLimit {
    /// `default_rate` holds where nobody stored another one with `set_rate`. 0 means no limit.
    pub fn new(redis: Redis, naming: &Naming, default_rate: u32) -> Self {
        let base = naming.limit();
        Self {
            redis,
            rate_key: format!("{base}:rate"),
            log_key: format!("{base}:log"),
            used_key: format!("{base}:used"),
            default_rate,
        }
    }

    /// Asks for `wanted` permits; what is given is spent.
    pub async fn acquire(&self, wanted: u32) -> Result<Granted, RedisError> {
        let keys = [&*self.rate_key, &*self.log_key, &*self.used_key];
        let value = self
            .redis
            .run(&script::LIMIT_ACQUIRE, &keys, |command| {
                command.arg(wanted).arg(self.default_rate).arg(STORED_RATE_LIFE_MS);
            })
            .await?;
        let mut answer = Answer::new(script::LIMIT_ACQUIRE.name, value)?;
        let permits = u32::try_from(answer.integer()?).map_err(|_| answer.unknown())?;
        let retry_after = u64::try_from(answer.integer()?).map_err(|_| answer.unknown())?;
        Ok(Granted {
            permits,
            retry_after: Duration::from_micros(retry_after),
        })
    }

    /// The rate that `set_rate` stored; `None`: none is stored, or nobody has asked for permits for a month.
    pub async fn stored_rate(&self) -> Result<Option<u32>, RedisError> {
        let keys = [&*self.rate_key];
        let value = self.redis.run(&script::LIMIT_STORED_RATE, &keys, |_| {}).await?;
        let mut answer = Answer::new(script::LIMIT_STORED_RATE.name, value)?;
        match answer.integer()? {
            -1 => Ok(None),
            rate => u32::try_from(rate).map(Some).map_err(|_| answer.unknown()),
        }
    }

    /// Changes the rate for the whole installation; grants nothing by itself.
    pub async fn set_rate(&self, rate: u32) -> Result<(), RedisError> {
        self.redis
            .run(&script::LIMIT_SET_RATE, &[&self.rate_key], |command| {
                command.arg(rate).arg(STORED_RATE_LIFE_MS);
            })
            .await
            .map(drop)
    }
}
