//! `coupon migrate`

use std::time::Duration;

use campaign::{
    postgres::database::{Database, DatabaseError},
    settings::PostgresSettings,
};

use crate::patience::try_within;

/// Where the database is.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Changes nothing: succeeds when the schema is that of this release, or of a newer one.
    #[arg(long)]
    check: bool,
    /// How long to try again: while the server is starting, or, with --check, while somebody else migrates.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    within: Duration,
    #[command(flatten)]
    postgres: PostgresSettings,
}

/// Migrates.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    try_within(arguments.within, || migrate(&arguments)).await?;
    println!("the schema is that of this release");
    Ok(())
}

async fn migrate(arguments: &Arguments) -> Result<(), DatabaseError> {
    let database = Database::connect(&arguments.postgres).await?;
    if arguments.check {
        database.check_migrated().await
    } else {
        database.migrate().await
    }
}
