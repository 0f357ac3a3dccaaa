//! Settings of an intake: those of the installation, where the servers are, and its own bounds.

use std::{net::SocketAddr, time::Duration};

use campaign::settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings};
use clap::Args;

/// Flags and environment variables of an intake.
#[derive(Clone, Debug, Args)]
pub struct IntakeSettings {
    /// What all processes of the installation agree on.
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
    /// The door's own bounds and addresses.
    #[command(flatten)]
    pub door: DoorSettings,
}

/// The door's own bounds and addresses.
#[derive(Clone, Debug, Args)]
pub struct DoorSettings {
    /// Public address: claims, their status, campaigns. Port 0 takes a free one.
    #[arg(long, env = "COUPON_INTAKE_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Internal address: coupons, probes and metrics. Callers are not authenticated: do not expose it.
    #[arg(long, env = "COUPON_INTAKE_INTERNAL_LISTEN", default_value = "0.0.0.0:8081")]
    pub internal_listen: SocketAddr,
    /// Most claims of this process that wait or are on their way; one more answers OVERLOADED at once.
    #[arg(long, env = "COUPON_INTAKE_MAX_IN_FLIGHT", default_value_t = 20_000)]
    pub max_in_flight: usize,
    /// The same for one campaign, so that a stalled one leaves room for the others.
    #[arg(long, env = "COUPON_INTAKE_MAX_IN_FLIGHT_PER_CAMPAIGN", default_value_t = 10_000)]
    pub max_in_flight_per_campaign: usize,
    /// How often the campaigns are read from Postgres; an unknown name asks at most as often.
    #[arg(long, env = "COUPON_INTAKE_CAMPAIGN_REFRESH", default_value = "1s", value_parser = humantime::parse_duration)]
    pub campaign_refresh: Duration,
}
