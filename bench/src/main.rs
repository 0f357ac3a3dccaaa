//! `bench`: the suite, and the children that it starts of itself.

use bench::{
    bare_route,
    client::{self, ClientPlan},
    error::BenchError,
    measure::{
        p99::{self, BarePath},
        rebuild::{self, RebuildPlan},
    },
    suite::{self, SuiteSettings},
};
use clap::{Parser, Subcommand};
use serde::Serialize;

/// The intake's: the bare route must not be slower for its allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the system side by side with the least that it could do.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the measurements.
    Run(SuiteSettings),
    /// Claims over HTTP.
    #[command(hide = true)]
    Client(ClientPlan),
    /// Serves the bare route.
    #[command(hide = true)]
    BareRoute {
        /// Where.
        #[arg(long)]
        listen: std::net::SocketAddr,
    },
    /// Reserves and publishes without a door.
    #[command(hide = true)]
    BarePath(BarePath),
    /// Rebuilds a state.
    #[command(hide = true)]
    Rebuild(Box<RebuildPlan>),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Run(settings) => {
            if !threads()?.block_on(suite::run(settings))? {
                anyhow::bail!("not everything could be measured");
            }
        }
        Command::Client(plan) => tell(&one_thread()?.block_on(client::run(plan))?)?,
        Command::BareRoute { listen } => threads()?.block_on(bare_route::serve(listen))?,
        Command::Rebuild(plan) => tell(&threads()?.block_on(rebuild::run(*plan))?)?,
        Command::BarePath(path) => tell(&one_thread()?.block_on(p99::run(path))?)?,
    }
    Ok(())
}

fn threads() -> Result<tokio::runtime::Runtime, BenchError> {
    tokio::runtime::Runtime::new().map_err(BenchError::io("start the runtime"))
}

fn one_thread() -> Result<tokio::runtime::Runtime, BenchError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("start the runtime"))
}

/// A child's report, for its parent.
fn tell(report: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
