//! `coupon dlq list|replay|discard`

use anyhow::bail;
use campaign::{
    identity::Reservation,
    name::CampaignName,
    postgres::{
        database::Database,
        parked::{ParkedClaim, Replay},
    },
    settings::{InstallationSettings, PostgresSettings},
};
use clap::Subcommand;

/// What to do with dead letters.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    installation: InstallationSettings,
    #[command(flatten)]
    postgres: PostgresSettings,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists parked claims, whose slots stay taken.
    List {
        /// Only of this campaign.
        #[arg(long)]
        campaign: Option<String>,
    },
    /// Makes parked claims coupons.
    Replay(Selection),
    /// Rejects parked claims; the sweeper then frees their slots.
    Discard(Selection),
}

#[derive(Debug, clap::Args)]
struct Selection {
    /// `name` or `namespace/name`.
    campaign: String,
    /// Reservations, as `list` shows them.
    #[arg(required_unless_present = "all")]
    reservations: Vec<Reservation>,
    /// All of the campaign.
    #[arg(long, conflicts_with = "reservations")]
    all: bool,
}

/// Does it.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let database = Database::connect(&arguments.postgres).await?;
    database.check_migrated().await?;
    let namespace = &arguments.installation.namespace;
    match arguments.action {
        Action::List { campaign } => list(&database, namespace, campaign.as_deref()).await,
        Action::Replay(selection) => replay(&database, namespace, &selection).await,
        Action::Discard(selection) => discard(&database, namespace, &selection).await,
    }
}

async fn list(database: &Database, namespace: &str, campaign: Option<&str>) -> anyhow::Result<()> {
    let claims = parked(database, namespace, campaign).await?;
    if claims.is_empty() {
        // Not on standard output, whose lines are claims.
        eprintln!("no dead letters");
    }
    for claim in claims {
        println!(
            "{}\t{}\t{}\t{}\t{}\t{}{}",
            claim.parked_at,
            claim.campaign_name,
            claim.reservation,
            claim.request,
            claim.user,
            claim.reason,
            if claim.discarded {
                "\t(discarded, slot not yet free)"
            } else {
                ""
            }
        );
    }
    Ok(())
}

async fn replay(database: &Database, namespace: &str, selection: &Selection) -> anyhow::Result<()> {
    let mut left = 0;
    for claim in selected(database, namespace, selection).await? {
        let outcome = match database.replay_parked(claim.campaign, &claim.reservation).await? {
            Replay::Issued => "issued",
            Replay::AlreadyIssued => {
                left += 1;
                "the user holds another coupon: discard it"
            }
            Replay::NotFound => {
                left += 1;
                "decided meanwhile"
            }
        };
        println!("{}\t{outcome}", claim.reservation);
    }
    if left > 0 {
        bail!("{left} claims were not issued");
    }
    Ok(())
}

async fn discard(database: &Database, namespace: &str, selection: &Selection) -> anyhow::Result<()> {
    for claim in selected(database, namespace, selection).await? {
        let discarded = database.discard_parked(claim.campaign, &claim.reservation).await?;
        let outcome = if discarded { "discarded" } else { "decided meanwhile" };
        println!("{}\t{outcome}", claim.reservation);
    }
    Ok(())
}

async fn parked(database: &Database, namespace: &str, campaign: Option<&str>) -> anyhow::Result<Vec<ParkedClaim>> {
    let name = campaign.map(|name| CampaignName::parse(name, namespace)).transpose()?;
    let mut claims = database.parked(None).await?;
    claims.retain(|claim| name.as_ref().is_none_or(|name| claim.campaign_name == *name));
    Ok(claims)
}

async fn selected(database: &Database, namespace: &str, selection: &Selection) -> anyhow::Result<Vec<ParkedClaim>> {
    let mut claims = parked(database, namespace, Some(&selection.campaign)).await?;
    claims.retain(|claim| !claim.discarded && (selection.all || selection.reservations.contains(&claim.reservation)));
    if let Some(missing) = selection
        .reservations
        .iter()
        .find(|wanted| !claims.iter().any(|claim| claim.reservation == **wanted))
    {
        bail!(
            "{missing} is not parked in {}; see `coupon dlq list`",
            selection.campaign
        );
    }
    Ok(claims)
}
