//! The operator's process: flags, logs, signals. Everything else is in the library.

use campaign::process::{LogSettings, shutdown_on_signals};
use clap::{Parser, Subcommand};
use operator::{crd, let_go, settings::OperatorSettings, startup};

/// Keeps campaigns as their CouponCampaign objects want them.
#[derive(Debug, Parser)]
#[command(name = "operator", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    operator: OperatorSettings,
    #[command(flatten)]
    logs: LogSettings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the CustomResourceDefinition that belongs to this release.
    Crd,
    /// Takes the finalizer off all campaigns, for an uninstall: nothing else of them changes.
    LetGo,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::Crd) = arguments.command {
        print!("{}", crd::yaml()?);
        return Ok(());
    }
    arguments.logs.install()?;
    if let Some(Command::LetGo) = arguments.command {
        let client = kube::Client::try_default().await?;
        let count = let_go::let_go(&client, &arguments.operator.cluster.namespaces()).await?;
        tracing::info!(count, "campaigns were let go");
        return Ok(());
    }
    startup::start(arguments.operator, shutdown_on_signals()?)
        .await?
        .wait()
        .await;
    Ok(())
}
