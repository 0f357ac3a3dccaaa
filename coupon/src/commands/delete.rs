//! `coupon delete NAME`

use std::time::{Duration, Instant};

use anyhow::bail;
use campaign::{
    postgres::campaign::{CampaignRow, CampaignTerms},
    redis::state::StateAnswer,
};

use crate::connections::{Connections, InstallationArguments};

const POLL: Duration = Duration::from_millis(200);

/// What to delete, and where.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// `name` or `namespace/name`.
    name: String,
    /// How long claims that are on their way may take to become coupons.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    drain_limit: Duration,
    #[command(flatten)]
    installation: InstallationArguments,
}

/// Shuts the door, waits until no claim is on its way (a SUCCESS is never taken back), then archives.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let connections = arguments.installation.connect().await?;
    let campaign = connections.campaign(&arguments.name).await?;
    let terms = CampaignTerms {
        paused: true,
        ..campaign.terms.clone()
    };
    connections.aligner.apply(&campaign.name, &terms).await?;
    drain(&connections, &campaign, arguments.drain_limit).await?;
    connections.database.archive_campaign(campaign.id).await?;
    connections.state.remove(&campaign.name, campaign.id).await?;
    println!("{} archived; its {} coupons stay valid", campaign.name, campaign.issued);
    Ok(())
}

async fn drain(connections: &Connections, campaign: &CampaignRow, limit: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let waits_for = match connections.state.state(&campaign.name).await? {
            StateAnswer::Present(numbers) if numbers.pending == 0 => return Ok(()),
            StateAnswer::Present(numbers) => format!("{} claims are on their way", numbers.pending),
            StateAnswer::Rebuilding { .. } => "its state is being rebuilt".to_owned(),
            // Past the close there is no state to wait for.
            StateAnswer::NotInitialized => return Ok(()),
        };
        if Instant::now() > deadline {
            bail!(
                "{} is paused but not archived: {waits_for} after {limit:?}; is a worker running? try again",
                campaign.name
            );
        }
        tokio::time::sleep(POLL).await;
    }
}
