//! Flags and environment variables of the worker.

use std::{net::SocketAddr, time::Duration};

use campaign::settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings};
use clap::Args;

/// Everything that a worker needs to know.
#[derive(Clone, Debug, Args)]
pub struct WorkerSettings {
    /// What every process of the installation shares.
    #[command(flatten)]
    pub installation: InstallationSettings,
    /// Where Redis is.
    #[command(flatten)]
    pub redis: RedisSettings,
    /// Where Kafka is.
    #[command(flatten)]
    pub kafka: KafkaSettings,
    /// Where Postgres is.
    #[command(flatten)]
    pub postgres: PostgresSettings,
    /// What only a worker knows.
    #[command(flatten)]
    pub tuning: Tuning,
}

/// How a worker works. The defaults are right unless you measured otherwise.
#[derive(Clone, Debug, Args)]
pub struct Tuning {
    /// Where `/livez`, `/readyz` and `/metrics` are served; port 0 takes a free one.
    #[arg(
        long = "worker-internal-listen",
        env = "COUPON_WORKER_INTERNAL_LISTEN",
        default_value = "0.0.0.0:9091"
    )]
    pub internal_listen: SocketAddr,
    /// Claims a second that all workers of the installation persist together, where no other rate is stored; 0: no limit.
    #[arg(long, env = "COUPON_PROCESSING_RATE", default_value_t = 0)]
    pub processing_rate: u32,
    /// Most claims of one transaction. The default is four full records.
    #[arg(long, env = "COUPON_WORKER_BATCH_CLAIMS", default_value_t = 1_024)]
    pub batch_claims: usize,
    /// Most records of one partition in memory; behind a stalled campaign, others pass within this window.
    #[arg(long, env = "COUPON_WORKER_WINDOW_RECORDS", default_value_t = 2_048)]
    pub window_records: usize,
    /// Most claims of one partition in memory.
    #[arg(long, env = "COUPON_WORKER_WINDOW_CLAIMS", default_value_t = 32_768)]
    pub window_claims: usize,
    /// Life of a campaign's persist lock; renewed at a third of it.
    #[arg(long, env = "COUPON_WORKER_LOCK_LEASE", default_value = "10s", value_parser = humantime::parse_duration)]
    pub lock_lease: Duration,
    /// How long the lock is kept over consecutive batches before others get their turn.
    #[arg(long, env = "COUPON_WORKER_LOCK_KEEP", default_value = "1s", value_parser = humantime::parse_duration)]
    pub lock_keep: Duration,
    /// How long the task of a campaign without records stays.
    #[arg(long, env = "COUPON_WORKER_CAMPAIGN_IDLE", default_value = "2m", value_parser = humantime::parse_duration)]
    pub campaign_idle: Duration,
    /// After this long without a sign of life, Kafka gives a worker's partitions to others.
    #[arg(long, env = "COUPON_WORKER_SESSION_TIMEOUT", default_value = "10s", value_parser = humantime::parse_duration)]
    pub session_timeout: Duration,
    /// Pause between two sweeps.
    #[arg(long, env = "COUPON_WORKER_SWEEP_INTERVAL", default_value = "5s", value_parser = humantime::parse_duration)]
    pub sweep_interval: Duration,
    /// Most events that the relay publishes at once.
    #[arg(long, env = "COUPON_WORKER_RELAY_BATCH", default_value_t = 2_000)]
    pub relay_batch: usize,
    /// How long what is under way may take to finish when the worker is told to stop.
    #[arg(long, env = "COUPON_WORKER_SHUTDOWN_GRACE", default_value = "25s", value_parser = humantime::parse_duration)]
    pub shutdown_grace: Duration,
}
