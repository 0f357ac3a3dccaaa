//! `coupon dev`

use std::{net::SocketAddr, path::PathBuf};

use campaign::{
    process::shutdown_on_signals,
    settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings},
};

use super::apply;
use crate::{
    given::Given,
    stack::{Stack, StackSettings},
};

/// What to run.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The `CouponCampaign` manifest to apply; may be given several times.
    #[arg(short, long = "file")]
    files: Vec<PathBuf>,
    /// Keeps what the launched servers hold in this folder, for the next time. Else it goes with the stack.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Public address: claims, their status, campaigns. Port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Internal address: coupons, probes and metrics.
    #[arg(long, default_value = "127.0.0.1:0")]
    internal_listen: SocketAddr,
    #[command(flatten)]
    installation: InstallationSettings,
    #[command(flatten)]
    redis: Given<RedisSettings>,
    #[command(flatten)]
    kafka: Given<KafkaSettings>,
    #[command(flatten)]
    postgres: Given<PostgresSettings>,
}

/// Runs the stack until it is told to end. A server whose address is given is used, the others are launched.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let manifests = arguments
        .files
        .iter()
        .map(apply::read)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let shutdown = shutdown_on_signals()?;
    let data = arguments.data.map(std::path::absolute).transpose()?;
    let settings = StackSettings {
        installation: InstallationSettings {
            dev: true,
            ..arguments.installation
        },
        redis: arguments.redis,
        kafka: arguments.kafka,
        postgres: arguments.postgres,
        data,
        listen: arguments.listen,
        internal_listen: arguments.internal_listen,
    };
    let start = Stack::start(settings, |line| println!("{line} …"));
    let Some(stack) = shutdown.run_until_cancelled(start).await else {
        // Launched servers end with this process.
        return Ok(());
    };
    let stack = stack?;
    let mut first = None;
    for manifest in &manifests {
        let applied = stack.apply(manifest).await?;
        println!("{}", apply::describe(&applied, manifest.spec.quantity));
        first.get_or_insert(applied.campaign.name);
    }
    describe(&stack, &first.map_or("NAME".to_owned(), |name| name.to_string()));

    tokio::select! {
        () = shutdown.cancelled() => {}
        () = stack.failed() => {}
    }
    println!("\nstopping: intake, worker, servers …");
    stack.stop().await?;
    println!("stopped");
    Ok(())
}

fn describe(stack: &Stack, campaign: &str) {
    let (public, internal) = (stack.public_address, stack.internal_address);
    println!(
        "
  Redis      {redis}
  Kafka      {kafka}
  Postgres   {postgres}
  intake     http://{public}
  internal   http://{internal}  (coupons, /readyz, /metrics)
  worker     http://{worker}  (/readyz, /metrics)

Claim a coupon:
  curl -i http://{public}/coupon-issues -H 'content-type: application/json' -d '{{\"campaign\":\"{campaign}\",\"userId\":\"ada\"}}'
See what is left:
  curl http://{public}/campaigns/{bare}

Ctrl-C stops all of it.",
        redis = stack.arguments.redis.redis_urls.join(","),
        kafka = stack.arguments.kafka.kafka_brokers,
        postgres = stack.arguments.postgres.postgres_url,
        worker = stack.worker_address,
        bare = campaign.rsplit('/').next().unwrap_or(campaign),
    );
}
