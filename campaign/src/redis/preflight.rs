//! What a Redis server must be set to before it may hold a campaign: `noeviction`, `lazyfree-lazy-expire yes`.

use std::collections::HashMap;

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
    }
    Ok(())
}

async fn check_node(node: &Node) -> Result<(), RedisError> {
    let address = node.address();
    for (name, wanted, why) in WANTED {
        let value = match node.send(redis::cmd("CONFIG").arg("GET").arg(name)).await {
            Ok(value) => redis::from_redis_value::<HashMap<String, String>>(value.clone())
                .map_err(|_| RedisError::unknown_answer(WHAT, &value))?,
            Err(Failed::Refused { code, message }) if code == "NOPERM" || code == "ERR" => {
                return Err(RedisError::Unsuitable(format!(
                    "Redis at {address} does not let {name} be read ({message}); allow this user CONFIG GET \
                     (ACL SETUSER <user> +config|get)"
                )));
            }
            Err(failed) => return Err(RedisError::from_failed(WHAT, failed)),
        };
        let found = value.get(name).map_or("", String::as_str);
        if found != wanted {
            return Err(RedisError::Unsuitable(format!(
                "Redis at {address} has {name} {found:?} where {wanted:?} is needed: {why}; run CONFIG SET {name} \
                 {wanted} and set it in redis.conf"
            )));
        }
    }
    Ok(())
}
