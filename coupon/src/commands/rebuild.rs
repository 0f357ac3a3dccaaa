//! `coupon rebuild NAME`

use anyhow::bail;
use campaign::rebuild::{Force, Rebuilt};

use crate::connections::InstallationArguments;

/// What to rebuild, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// `name` or `namespace/name`.
    name: String,
    /// Only if the state is missing.
    #[arg(long)]
    if_missing: bool,
    #[command(flatten)]
    installation: InstallationArguments,
}

/// Rebuilds it; the door is shut meanwhile.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let connections = arguments.installation.connect().await?;
    let campaign = connections.campaign(&arguments.name).await?.name;
    let force = if arguments.if_missing {
        Force::IfMissing
    } else {
        Force::Always
    };
    match connections.aligner.rebuilder.rebuild(&campaign, force).await? {
        Rebuilt::Done { epoch, users, took } => {
            println!("{campaign} rebuilt: epoch {epoch}, {users} users, the door was shut for {took:.1?}");
        }
        Rebuilt::NotNeeded => println!("{campaign} is there, or somebody else is rebuilding it"),
        Rebuilt::Superseded => {
            bail!("a later rebuild of {campaign} overtook this one; look at the state and try again")
        }
        Rebuilt::NoCampaign => bail!("{campaign} was archived meanwhile"),
    }
    Ok(())
}
