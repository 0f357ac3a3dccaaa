//! `coupon limit [RATE]`

use campaign::{
    redis::{connection::Redis, limit::ProcessingLimit},
    settings::{InstallationSettings, RedisSettings},
};

/// The rate, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Claims a second; 0: no limit. Without it, the rate that is stored is shown.
    rate: Option<u32>,
    #[command(flatten)]
    installation: InstallationSettings,
    #[command(flatten)]
    redis: RedisSettings,
}

/// Sets it for the whole installation (workers follow within two seconds), or shows what is set.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let naming = arguments.installation.naming()?;
    let redis = Redis::connect(&arguments.redis).await?;
    let limit = ProcessingLimit::new(redis, &naming, 0);
    let stored = match arguments.rate {
        Some(rate) => {
            limit.set_rate(rate).await?;
            Some(rate)
        }
        None => limit.stored_rate().await?,
    };
    println!("{}", describe(stored));
    Ok(())
}

fn describe(stored: Option<u32>) -> String {
    match stored {
        None => "no rate is stored: each worker's COUPON_PROCESSING_RATE holds (0, its default: no limit)".to_owned(),
        Some(0) => "no limit".to_owned(),
        Some(rate) => format!("{rate} claims a second"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stored_rate_is_not_the_same_as_no_limit() {
        assert!(describe(None).starts_with("no rate is stored"));
        assert_eq!(describe(Some(0)), "no limit");
        assert_eq!(describe(Some(500)), "500 claims a second");
    }
}
