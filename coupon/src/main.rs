//! `coupon`: only starts what the library holds.

use std::process::ExitCode;

use clap::Parser;
use coupon::cli::Cli;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    cli.logs.install()?;
    cli.command.run().await
}
