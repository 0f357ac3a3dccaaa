//! What a Redis server must be set to before it may hold a campaign: `noeviction`, `lazyfree-lazy-expire yes`.

use std::collections::HashMap;

use tracing::warn;

use super::{
    connection::{Redis, RedisError},
    node::{Failed, Node},
};

const WHAT: &str = "preflight";

/// Setting, wanted value, why.
const WANTED: [(&str, &str, &str); 2] = [
    (
        "maxmemory-policy",
        "noeviction",
        "an evicted state would be taken for an expired one",
    ),
    (
        "lazyfree-lazy-expire",
        "yes",
        "expiring a campaign of a million users would block the server",
    ),
];

/// Checks every primary; the error says which setting, on which server, and what to run.
pub async fn check(redis: &Redis) -> Result<(), RedisError> {
    for node in redis.primaries(WHAT).await? {
        check_node(&node).await?;
        if redis.has_sentinels() && setting(&node, "min-replicas-to-write").await? == "0" {
            warn!(
                server = %node.address(),
                "min-replicas-to-write is 0: a primary that lost its replicas goes on accepting claims, set it to 1"
            );
        }
    }
    Ok(())
}

async fn check_node(node: &Node) -> Result<(), RedisError> {
    for (name, wanted, why) in WANTED {
        let found = setting(node, name).await?;
        if found != wanted {
            return Err(RedisError::Unsuitable(format!(
                "Redis at {} has {name} {found:?} where {wanted:?} is needed: {why}; run CONFIG SET {name} {wanted} \
                 and set it in redis.conf",
                node.address()
            )));
        }
    }
    Ok(())
}

/// A setting of the server; empty if it has none of that name.
async fn setting(node: &Node, name: &str) -> Result<String, RedisError> {
    match node.send(redis::cmd("CONFIG").arg("GET").arg(name)).await {
        Ok(value) => redis::from_redis_value::<HashMap<String, String>>(value.clone())
            .map(|mut settings| settings.remove(name).unwrap_or_default())
            .map_err(|_| RedisError::unknown_answer(WHAT, &value)),
        Err(Failed::Refused { code, message }) if code == "NOPERM" || code == "ERR" => {
            Err(RedisError::Unsuitable(format!(
                "Redis at {} does not let {name} be read ({message}); allow this user CONFIG GET \
                 (ACL SETUSER <user> +config|get)",
                node.address()
            )))
        }
        Err(failed) => Err(RedisError::from_failed(WHAT, failed)),
    }
}
