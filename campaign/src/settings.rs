//! Where the servers are and what all processes of one installation must agree on. Flags and environment variables
//! of every binary; the README has the table.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::naming::{Naming, PrefixError};

/// What every process of an installation shares.
#[derive(Clone, Debug, Args)]
pub struct InstallationSettings {
    /// Goes before keys, topics and groups: two installations can share servers.
    #[arg(long, env = "COUPON_KEY_PREFIX", default_value = "coupon")]
    pub key_prefix: String,
    /// The namespace that a bare campaign name means.
    #[arg(long, env = "COUPON_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// The life of a claim between the reserve call and its acknowledgement. The same in every process.
    #[arg(long, env = "COUPON_PUBLISH_TIMEOUT", default_value = "5s", value_parser = humantime::parse_duration)]
    pub publish_timeout: Duration,
    /// How far the clocks of two machines may drift apart during one publish timeout.
    #[arg(long, env = "COUPON_CLOCK_MARGIN", default_value = "1s", value_parser = humantime::parse_duration)]
    pub clock_margin: Duration,
    /// Waives the checks that a single-node development stack cannot pass (replication, retention).
    #[arg(long, env = "COUPON_DEV", default_value_t = false)]
    pub dev: bool,
}

impl InstallationSettings {
    /// The names of this installation.
    pub fn naming(&self) -> Result<Naming, PrefixError> {
        Naming::new(&self.key_prefix)
    }

    /// After this long a reservation that is not in Kafka will never count.
    pub fn settle_after(&self) -> Duration {
        self.publish_timeout + self.clock_margin
    }
}

/// How Redis is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisMode {
    /// One server.
    Single,
    /// Sentinels that know the primary.
    Sentinel,
    /// Redis Cluster.
    Cluster,
}

/// Where Redis is.
#[derive(Clone, Debug, Args)]
pub struct RedisSettings {
    /// How Redis is laid out.
    #[arg(long, env = "COUPON_REDIS_MODE", value_enum, default_value = "single")]
    pub redis_mode: RedisMode,
    /// `redis://` or `rediss://` URLs: the server, the sentinels, or some nodes of the Cluster. Comma-separated.
    #[arg(
        long = "redis-url",
        env = "COUPON_REDIS_URLS",
        value_delimiter = ',',
        default_value = "redis://127.0.0.1:6379"
    )]
    pub redis_urls: Vec<String>,
    /// The name that the sentinels give the primary.
    #[arg(long, env = "COUPON_REDIS_SENTINEL_MASTER", default_value = "coupon")]
    pub redis_sentinel_master: String,
    /// User of the Redis servers, where it is not in the URL (with sentinels: the user of the primary).
    #[arg(long, env = "COUPON_REDIS_USERNAME")]
    pub redis_username: Option<String>,
    /// Password of the Redis servers, where it is not in the URL (with sentinels: the password of the primary).
    #[arg(long, env = "COUPON_REDIS_PASSWORD", hide_env_values = true)]
    pub redis_password: Option<String>,
    /// How long an answer may take before it counts as lost.
    #[arg(long, env = "COUPON_REDIS_TIMEOUT", default_value = "2s", value_parser = humantime::parse_duration)]
    pub redis_timeout: Duration,
}

/// Where Kafka is.
#[derive(Clone, Debug, Args)]
pub struct KafkaSettings {
    /// `host:port`, comma-separated.
    #[arg(long, env = "COUPON_KAFKA_BROKERS", default_value = "127.0.0.1:9092")]
    pub kafka_brokers: String,
    /// Further librdkafka properties as `key=value`, comma-separated (for instance `security.protocol=ssl`). What the
    /// promise rests on (acks, idempotence, timeouts) cannot be set here.
    #[arg(
        long = "kafka-property",
        env = "COUPON_KAFKA_PROPERTIES",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub kafka_properties: Vec<String>,
}

/// Where Postgres is.
#[derive(Clone, Debug, Args)]
pub struct PostgresSettings {
    /// `postgres://user:password@host/database`.
    #[arg(
        long,
        env = "COUPON_POSTGRES_URL",
        default_value = "postgres://coupon@127.0.0.1:5432/coupon",
        hide_env_values = true
    )]
    pub postgres_url: String,
    /// Most connections of this process.
    #[arg(long, env = "COUPON_POSTGRES_POOL", default_value_t = 10)]
    pub postgres_pool: u32,
}
