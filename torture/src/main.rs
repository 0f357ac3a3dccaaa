//! `torture`: only starts what the library holds.

use std::process::ExitCode;

use clap::Parser;
use torture::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.logs.install() {
        Ok(()) => cli.run().await,
        Err(error) => Err(error.into()),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
