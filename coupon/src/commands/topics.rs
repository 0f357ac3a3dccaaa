//! `coupon topics create` and `coupon topics accept`

use std::time::Duration;

use campaign::{
    kafka::topics,
    settings::{InstallationSettings, KafkaSettings},
    topic_recovery,
};
use clap::Subcommand;

use crate::{connections::InstallationArguments, patience::try_within};

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
    /// Goes on with a topic of claims that was made anew or cut back: what it holds now is read from its beginning, every
    /// live campaign is rebuilt, and the doors open. Claims that it has lost are lost.
    Accept(InstallationArguments),
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

/// Does it.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.action {
        Action::Create(arguments) => create(arguments).await,
        Action::Accept(installation) => accept(&installation).await,
    }
}

async fn accept(installation: &InstallationArguments) -> anyhow::Result<()> {
    let connections = installation.connect().await?;
    let topic = connections.naming.requests_topic();
    match topic_recovery::accept_topic(&connections.aligner.rebuilder).await? {
        Some(rebuilt) => println!("{topic} is accepted as it is; rebuilt: {}", rebuilt.len()),
        None => println!("{topic} reaches all that was consumed of it: nothing to accept"),
    }
    Ok(())
}

async fn create(arguments: CreateArguments) -> anyhow::Result<()> {
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
