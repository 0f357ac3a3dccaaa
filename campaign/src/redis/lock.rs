//! The distributed lock: fenced, renewed at a third of its life, released by its owner only.

use std::time::Duration;

use super::connection::{Redis, RedisError};

/// Takes locks.
#[derive(Clone)]
pub struct Locks {}

/// A lock that is held. A background task renews it until it is dropped or released.
pub struct Held {}

impl Locks {
    /// Locks through `redis`.
    pub fn new(redis: Redis) -> Self {
        let _ = redis;
        Self {}
    }

    /// One try. `floor` is the largest token known elsewhere (`campaign.fence`): the new token is larger.
    pub async fn try_acquire(&self, key: &str, lease: Duration, floor: i64) -> Result<Option<Held>, RedisError> {
        let _ = (key, lease, floor);
        unimplemented!()
    }

    /// Tries until `wait` is over (jittered pauses, no fixed rhythm).
    pub async fn acquire(
        &self,
        key: &str,
        lease: Duration,
        floor: i64,
        wait: Duration,
    ) -> Result<Option<Held>, RedisError> {
        let _ = (key, lease, floor, wait);
        unimplemented!()
    }
}

impl Held {
    /// The fencing token. Tokens only grow, also after a flush.
    pub fn token(&self) -> i64 {
        unimplemented!()
    }

    /// False once a renewal failed or the lease ran out by our own clock.
    pub fn is_held(&self) -> bool {
        unimplemented!()
    }

    /// Resolves when the lock is lost.
    pub async fn lost(&self) {
        unimplemented!()
    }

    /// Gives it back (only if it is still ours). An error is harmless: the lease runs out.
    pub async fn release(self) -> Result<(), RedisError> {
        unimplemented!()
    }
}
