//! `coupon topics create`

use std::time::Duration;

use campaign::{
    kafka::topics,
    settings::{InstallationSettings, KafkaSettings},
};
use clap::Subcommand;

use crate::patience::try_within;

/// What to do with the topics.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Creates those that are missing; the others stay as they are.
    Create(CreateArguments),
}

#[derive(Debug, clap::Args)]
struct CreateArguments {
    #[command(flatten)]
    installation: InstallationSettings,
    #[command(flatten)]
    kafka: KafkaSettings,
    /// Copies of each partition; 3 in earnest.
    #[arg(long, default_value_t = 3)]
    replication: i32,
    /// How long to try again while the brokers are starting.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    within: Duration,
}

/// Creates them.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Action::Create(arguments) = arguments.action;
    let naming = arguments.installation.naming()?;
    try_within(arguments.within, || {
        topics::create(&arguments.kafka, &naming, arguments.replication)
    })
    .await?;
    for topic in [naming.requests_topic(), naming.dlq_topic(), naming.lifecycle_topic()] {
        println!("{topic} is there");
    }
    Ok(())
}
