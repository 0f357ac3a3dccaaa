//! `coupon migrate`

use campaign::{postgres::database::Database, settings::PostgresSettings};

/// Where the database is.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    postgres: PostgresSettings,
}

/// Migrates.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let database = Database::connect(&arguments.postgres).await?;
    database.migrate().await?;
    println!("the schema is that of this release");
    Ok(())
}
