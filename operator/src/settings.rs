//! Flags and environment variables of the operator.

use std::{net::SocketAddr, time::Duration};

use campaign::settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings};
use clap::Args;

use crate::demand::Bounds;

/// Everything that an operator needs to know.
#[derive(Clone, Debug, Args)]
pub struct OperatorSettings {
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
    /// What it looks after in the cluster.
    #[command(flatten)]
    pub cluster: ClusterSettings,
}

/// What the operator looks after in the cluster.
#[derive(Clone, Debug, Args)]
pub struct ClusterSettings {
    /// Where `/livez`, `/readyz` and `/metrics` are served; port 0 takes a free one.
    #[arg(
        long = "operator-listen",
        env = "COUPON_OPERATOR_LISTEN",
        default_value = "0.0.0.0:8081"
    )]
    pub listen: SocketAddr,
    /// Where the lease and the Deployments are; the installation's namespace if it is not given.
    #[arg(long, env = "POD_NAMESPACE")]
    pub operator_namespace: Option<String>,
    /// The namespaces whose campaigns it looks after, comma-separated; all of them if none is given (needs a ClusterRole).
    #[arg(long = "watch-namespace", env = "COUPON_OPERATOR_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// The Lease that elects the leader.
    #[arg(long, env = "COUPON_OPERATOR_LEASE", default_value = "coupon-operator")]
    pub lease: String,
    /// This replica's name in the lease and in events: its pod's.
    #[arg(long, env = "POD_NAME", default_value = "operator")]
    pub pod: String,
    /// The Deployment of the intake; not scaled if it is not given.
    #[arg(long, env = "COUPON_INTAKE_DEPLOYMENT")]
    pub intake_deployment: Option<String>,
    /// Intake pods while no campaign wants more.
    #[arg(long, env = "COUPON_INTAKE_MIN_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub intake_min_replicas: i32,
    /// Most intake pods, whatever campaigns want.
    #[arg(long, env = "COUPON_INTAKE_MAX_REPLICAS", default_value_t = 10, value_parser = clap::value_parser!(i32).range(1..))]
    pub intake_max_replicas: i32,
    /// The Deployment of the worker; not scaled if it is not given.
    #[arg(long, env = "COUPON_WORKER_DEPLOYMENT")]
    pub worker_deployment: Option<String>,
    /// Worker pods while no campaign wants more.
    #[arg(long, env = "COUPON_WORKER_MIN_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    pub worker_min_replicas: i32,
    /// Most worker pods, whatever campaigns want.
    #[arg(long, env = "COUPON_WORKER_MAX_REPLICAS", default_value_t = 8, value_parser = clap::value_parser!(i32).range(1..))]
    pub worker_max_replicas: i32,
    /// How long the demand must have been lower before pods go.
    #[arg(long, env = "COUPON_OPERATOR_SCALE_DOWN_AFTER", default_value = "60s", value_parser = humantime::parse_duration)]
    pub scale_down_after: Duration,
}

impl ClusterSettings {
    /// Of the intake's Deployment.
    pub fn intake_bounds(&self) -> Bounds {
        Bounds {
            baseline: self.intake_min_replicas,
            ceiling: self.intake_max_replicas.max(self.intake_min_replicas),
        }
    }

    /// Of the worker's Deployment.
    pub fn worker_bounds(&self) -> Bounds {
        Bounds {
            baseline: self.worker_min_replicas,
            ceiling: self.worker_max_replicas.max(self.worker_min_replicas),
        }
    }

    /// The namespaces that were given; an empty text (as a chart writes it for "all") is none.
    pub fn namespaces(&self) -> Vec<String> {
        self.watch_namespaces
            .iter()
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect()
    }
}
