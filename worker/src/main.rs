//! The worker's process: flags, logs, signals. Everything else is in the library.

use clap::Parser;
use tokio_util::sync::CancellationToken;
use worker::{settings::WorkerSettings, startup};

/// Makes claims coupons.
#[derive(Debug, Parser)]
#[command(name = "worker", version)]
struct Arguments {
    #[command(flatten)]
    worker: WorkerSettings,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let stop = CancellationToken::new();
    let worker = startup::start(arguments.worker, stop.clone()).await?;
    worker.wait().await?;
    Ok(())
}
