//! The commands and what they are called with.

use std::process::ExitCode;

use campaign::process::LogSettings;
use clap::{Parser, Subcommand};

use crate::{
    audit,
    commands::{apply, campaigns, delete, dev, dlq, limit, migrate, rebuild, topics},
    demo, load,
};

/// First-come coupon campaigns: local stack and operation by hand.
#[derive(Debug, Parser)]
#[command(name = "coupon", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub logs: LogSettings,
}

// Usages are written out where something is required: clap would list every flag that came from the environment as if it
// were, too.
/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs Redis, Kafka, Postgres, intake and worker on this machine, until Ctrl-C.
    Dev(dev::Arguments),
    /// Brings the database schema up to this release.
    Migrate(migrate::Arguments),
    /// Creates the Kafka topics that are missing, or goes on with one that was made anew.
    Topics(topics::Arguments),
    /// Creates a campaign or changes its terms.
    #[command(override_usage = "coupon apply [OPTIONS] --file <FILE>")]
    Apply(apply::Arguments),
    /// Lists live and retired campaigns.
    Campaigns(campaigns::Arguments),
    /// Drains a campaign and retires it: applied again, it goes on. With --policy delete it is archived, and its name is
    /// free for a new one.
    #[command(override_usage = "coupon delete [OPTIONS] <NAME>")]
    Delete(delete::Arguments),
    /// Builds a campaign's state in Redis anew, from Postgres and from the claims still in Kafka.
    #[command(override_usage = "coupon rebuild [OPTIONS] <NAME>")]
    Rebuild(rebuild::Arguments),
    /// Shows and decides dead letters.
    Dlq(dlq::Arguments),
    /// Shows or changes how many claims a second all workers together persist.
    Limit(limit::Arguments),
    /// Lets users claim over HTTP: a load for any running intake.
    Load(load::LoadArgs),
    /// Checks Redis, Kafka and Postgres against each other.
    Audit(audit::AuditArgs),
    /// Sells a campaign out on this machine, under a burst, and audits the result.
    Demo(demo::DemoArgs),
}

impl Command {
    /// Does it. An error is exit code 1; `load`, `audit` and `demo` have codes of their own.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Dev(arguments) => dev::run(arguments).await?,
            Self::Migrate(arguments) => migrate::run(arguments).await?,
            Self::Topics(arguments) => topics::run(arguments).await?,
            Self::Apply(arguments) => apply::run(arguments).await?,
            Self::Campaigns(arguments) => campaigns::run(arguments).await?,
            Self::Delete(arguments) => delete::run(arguments).await?,
            Self::Rebuild(arguments) => rebuild::run(arguments).await?,
            Self::Dlq(arguments) => dlq::run(arguments).await?,
            Self::Limit(arguments) => limit::run(arguments).await?,
            Self::Load(arguments) => return Ok(load::run(arguments).await),
            Self::Audit(arguments) => return Ok(audit::run(arguments).await),
            Self::Demo(arguments) => return demo::run(arguments).await,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What came from the environment counts for clap as what was typed.
    #[test]
    fn a_usage_names_what_is_missing_and_not_what_is_there() {
        for (command, usage) in [
            ("apply", "Usage: coupon apply [OPTIONS] --file <FILE>"),
            ("delete", "Usage: coupon delete [OPTIONS] <NAME>"),
            ("rebuild", "Usage: coupon rebuild [OPTIONS] <NAME>"),
        ] {
            let error = Cli::try_parse_from(["coupon", command, "--key-prefix", "shop", "--redis-mode", "cluster"])
                .expect_err("something is missing")
                .to_string();
            assert!(error.contains(usage), "{error}");
        }
    }

    #[test]
    fn a_limit_without_a_rate_asks_for_it() {
        Cli::try_parse_from(["coupon", "limit"]).expect("shows what is stored");
        Cli::try_parse_from(["coupon", "limit", "-1"]).expect_err("no rate");
    }
}
