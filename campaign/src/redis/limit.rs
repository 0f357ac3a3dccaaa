//! The cluster-wide processing limit: permits a second for all workers of the installation.

use std::time::Duration;

use super::connection::{Redis, RedisError};
use crate::naming::Naming;

/// Asks for permits.
#[derive(Clone)]
pub struct ProcessingLimit {}

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
        let _ = (redis, naming, default_rate);
        Self {}
    }

    /// Asks for `wanted` permits; what is given is spent.
    pub async fn acquire(&self, wanted: u32) -> Result<Granted, RedisError> {
        let _ = wanted;
        unimplemented!()
    }

    /// Changes the rate for the whole installation; grants nothing by itself.
    pub async fn set_rate(&self, rate: u32) -> Result<(), RedisError> {
        let _ = rate;
        unimplemented!()
    }
}
