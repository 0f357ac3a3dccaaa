//! The worker's process: flags, logs, signals. Everything else is in the library.

use campaign::process::{LogSettings, shutdown_on_signals};
use clap::Parser;
use worker::{settings::WorkerSettings, startup};

/// Makes claims coupons.
#[derive(Debug, Parser)]
#[command(name = "worker", version)]
struct Arguments {
    #[command(flatten)]
    worker: WorkerSettings,
    #[command(flatten)]
    logs: LogSettings,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    arguments.logs.install()?;
    let worker = startup::start(arguments.worker, shutdown_on_signals()?).await?;
    worker.wait().await?;
    Ok(())
}
