//! `coupon limit RATE`

use campaign::{
    redis::{connection::Redis, limit::ProcessingLimit},
    settings::{InstallationSettings, RedisSettings},
};

/// The rate, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Claims a second; 0: no limit.
    rate: u32,
    #[command(flatten)]
    installation: InstallationSettings,
    #[command(flatten)]
    redis: RedisSettings,
}

/// Sets it for the whole installation; workers follow within two seconds.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let naming = arguments.installation.naming()?;
    let redis = Redis::connect(&arguments.redis).await?;
    ProcessingLimit::new(redis, &naming, 0).set_rate(arguments.rate).await?;
    match arguments.rate {
        0 => println!("no limit"),
        rate => println!("{rate} claims a second"),
    }
    Ok(())
}
