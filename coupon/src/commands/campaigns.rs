//! `coupon campaigns`

use campaign::{
    postgres::{campaign::CampaignRow, database::Database},
    settings::PostgresSettings,
};

/// Where the database is.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    postgres: PostgresSettings,
}

/// Lists live and retired campaigns, as Postgres has them. Archived ones have no name any more.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let database = Database::connect(&arguments.postgres).await?;
    database.check_migrated().await?;
    let live = database.live_campaigns().await?;
    let retired = database.retired_campaigns().await?;
    if live.is_empty() && retired.is_empty() {
        eprintln!("no campaigns");
    }
    for row in &live {
        println!("{}", line(row, if row.terms.paused { "paused" } else { "live" }));
    }
    for row in &retired {
        println!("{}", line(row, "retired"));
    }
    Ok(())
}

fn line(row: &CampaignRow, stands: &str) -> String {
    format!(
        "{}\t{stands}\tquantity {}\tissued {}\tparked {}",
        row.name, row.terms.quantity, row.issued, row.parked
    )
}
