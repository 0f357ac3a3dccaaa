//! What a Redis server must be set to before it may hold a campaign: `noeviction`, `lazyfree-lazy-expire yes`.

use super::connection::{Redis, RedisError};

/// Checks every primary; the error says which setting, on which server, and what to run.
pub async fn check(redis: &Redis) -> Result<(), RedisError> {
    let _ = redis;
    unimplemented!()
}
