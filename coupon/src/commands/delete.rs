//! `coupon delete NAME`

use std::time::Duration;

use anyhow::bail;
use campaign::{align::deletion::Deletion, manifest::DeletionPolicy, name::CampaignName};

use crate::connections::{ConnectError, InstallationArguments};

/// What to delete, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// `name` or `namespace/name`.
    name: String,
    /// Whether the next apply of the name goes on with the campaign, or the name is free for another one.
    #[arg(long, value_enum, default_value = "retain")]
    policy: Policy,
    /// How long claims that are on their way may take to become coupons.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    drain_limit: Duration,
    #[command(flatten)]
    installation: InstallationArguments,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Policy {
    /// Applied again, it goes on: holders stay holders.
    Retain,
    /// It is archived; applied again, the name is another campaign.
    Delete,
}

/// Shuts the door, waits until no claim is on its way (a SUCCESS is never taken back), then retires or archives.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let connections = arguments.installation.connect().await?;
    let name = CampaignName::parse(&arguments.name, &connections.installation.namespace)?;
    let (policy, done) = match arguments.policy {
        Policy::Retain => (DeletionPolicy::Retain, "retired"),
        Policy::Delete => (DeletionPolicy::Delete, "archived"),
    };
    match connections.aligner.delete(&name, policy, arguments.drain_limit).await? {
        Deletion::Done(_) => println!("{name} is {done}; its coupons stay valid"),
        Deletion::Draining(undrained) => bail!(
            "{name} is paused but not {done}: {undrained} after {:?}; is a worker running? try again",
            arguments.drain_limit
        ),
        Deletion::NotLive => return Err(ConnectError::NoCampaign(name).into()),
    }
    Ok(())
}
