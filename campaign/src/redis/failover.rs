//! How long an old primary may go on writing after another server took over.

use std::{collections::HashMap, time::Duration};

use redis::{Cmd, Value};

use super::connection::{Redis, RedisError};

/// Redis' own defaults, where CONFIG may not be read.
const DEFAULT_MAX_LAG: Duration = Duration::from_secs(10);
const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_secs(15);

const WHAT: &str = "failover_lag";

/// The lag of the server that has `key`; zero where nothing can take over.
pub(super) async fn lag(redis: &Redis, key: &str) -> Result<Duration, RedisError> {
    if redis.is_cluster() {
        let nodes = text(redis, key, redis::cmd("CLUSTER").arg("NODES")).await?;
        if !cluster_can_fail_over(&nodes) {
            return Ok(Duration::ZERO);
        }
        let settings = settings(redis, key, "cluster-node-timeout").await?;
        let timeout = settings.map_or(DEFAULT_NODE_TIMEOUT, Duration::from_millis);
        return Ok(timeout.max(max_lag(redis, key).await?));
    }
    // Right after a failover the new primary may have no replica: with sentinels that proves nothing.
    if !redis.has_sentinels() {
        let replication = text(redis, key, redis::cmd("INFO").arg("replication")).await?;
        if replication.contains("connected_slaves:0") {
            return Ok(Duration::ZERO);
        }
    }
    max_lag(redis, key).await
}

async fn max_lag(redis: &Redis, key: &str) -> Result<Duration, RedisError> {
    let setting = settings(redis, key, "min-replicas-max-lag").await?;
    Ok(setting.map_or(DEFAULT_MAX_LAG, Duration::from_secs))
}

/// `CLUSTER NODES` with a replica, or with a primary that failed: its replica may have taken over.
fn cluster_can_fail_over(nodes: &str) -> bool {
    nodes
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .any(|flags| flags.contains("slave") || flags.contains("fail"))
}

async fn settings(redis: &Redis, key: &str, name: &str) -> Result<Option<u64>, RedisError> {
    match redis.send(key, redis::cmd("CONFIG").arg("GET").arg(name)).await {
        Ok(value) => Ok(redis::from_redis_value::<HashMap<String, String>>(value)
            .ok()
            .and_then(|settings| settings.get(name)?.parse().ok())),
        Err(super::node::Failed::Refused { code, .. }) if code == "NOPERM" || code == "ERR" => Ok(None),
        Err(failed) => Err(RedisError::from_failed(WHAT, failed)),
    }
}

async fn text(redis: &Redis, key: &str, command: &Cmd) -> Result<String, RedisError> {
    let value = redis
        .send(key, command)
        .await
        .map_err(|failed| RedisError::from_failed(WHAT, failed))?;
    redis::from_redis_value::<String>(value.clone()).map_err(|_| unknown(&value))
}

fn unknown(value: &Value) -> RedisError {
    RedisError::unknown_answer(WHAT, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_fails_over_where_a_replica_is_or_a_primary_was() {
        let line = |flags: &str| format!("07c3 127.0.0.1:7000@17000 {flags} - 0 0 1 connected 0-5460\n");
        assert!(!cluster_can_fail_over(&(line("myself,master") + &line("master"))));
        assert!(cluster_can_fail_over(&(line("myself,master") + &line("slave"))));
        assert!(cluster_can_fail_over(&(line("myself,master") + &line("master,fail"))));
    }
}
