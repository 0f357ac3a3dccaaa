//! `intake`: the door as a process of its own. All of it is in the library.

use campaign::process::{LogSettings, shutdown_on_signals};
use clap::Parser;
use intake::IntakeSettings;

/// Each claim is some short-lived allocations on one thread and frees on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Takes claims: reserves in Redis, publishes to Kafka, answers.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    settings: IntakeSettings,
    #[command(flatten)]
    logs: LogSettings,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    arguments.logs.install()?;
    intake::run(arguments.settings, shutdown_on_signals()?).await?;
    Ok(())
}
