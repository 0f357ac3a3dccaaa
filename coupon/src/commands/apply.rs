//! `coupon apply -f FILE`

use std::{fs, path::PathBuf};

use anyhow::Context;
use campaign::{align::Applied, manifest::CouponCampaign};

use crate::connections::InstallationArguments;

/// What to apply, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The `CouponCampaign` manifest.
    #[arg(short, long)]
    file: PathBuf,
    #[command(flatten)]
    installation: InstallationArguments,
}

/// Applies it.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let manifest = read(&arguments.file)?;
    let connections = arguments.installation.connect().await?;
    let name = manifest.name(&connections.installation.namespace)?;
    let applied = connections.aligner.apply(&name, &manifest.spec.terms()).await?;
    println!("{}", describe(&applied, manifest.spec.quantity));
    Ok(())
}

/// Reads and validates a manifest.
pub fn read(file: &PathBuf) -> anyhow::Result<CouponCampaign> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    CouponCampaign::from_yaml(&text).with_context(|| format!("cannot apply {}", file.display()))
}

/// One line about what happened.
pub fn describe(applied: &Applied, wanted: i64) -> String {
    let campaign = &applied.campaign;
    let done = if applied.created { "created" } else { "applied" };
    let mut line = format!("{} {done}: {} coupons", campaign.name, campaign.terms.quantity);
    if campaign.terms.quantity != wanted {
        line.push_str(&format!(" ({wanted} were asked for, but more are taken already)"));
    }
    line
}
