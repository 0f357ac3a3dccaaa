//! Flags, and seeds one after the other.

use std::{ops::RangeInclusive, path::PathBuf, process::ExitCode, str::FromStr, time::Duration};

use anyhow::Context;
use campaign::process::LogSettings;
use clap::{Parser, Subcommand};

use crate::{
    backlog::{BacklogSettings, backlog},
    plan::ChosenKinds,
    report::{self, Totals},
    run::{RunSettings, run},
};

/// Breaks servers, network and processes at random while clients claim, and judges what they were told. Exit codes: 0 the
/// promise holds, 1 it is broken, 2 a run has no verdict.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// One seed; a random one, which is printed, if neither this nor --seeds is given.
    #[arg(long, conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Seeds one after the other: `1..100` (both included).
    #[arg(long)]
    pub seeds: Option<Seeds>,
    /// How long faults are inflicted, a seed.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Only these kinds of faults, with commas between, again and again: to look for one bug.
    #[arg(long, conflicts_with = "resume")]
    pub faults: Option<ChosenKinds>,
    /// New clients a second.
    #[arg(long, default_value_t = 220.0)]
    pub rate: f64,
    /// A file with one JSON line a seed: seeds in it are not run again, and its counts are added.
    #[arg(long)]
    pub resume: Option<PathBuf>,
    /// Where logs, history and report of a broken seed are kept.
    #[arg(long, default_value = "target/torture")]
    pub folder: PathBuf,
    /// Keeps logs, history and report of every seed.
    #[arg(long)]
    pub keep: bool,
    /// Another kind of run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Logs of this process.
    #[command(flatten)]
    pub logs: LogSettings,
}

/// Runs that know no seed.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Everything dies at once before a backlog of claims, and starts again at once.
    Backlog {
        /// Claims that wait.
        #[arg(long, default_value_t = 200_000)]
        claims: u64,
        /// Where logs lie.
        #[arg(long, default_value = "target/torture")]
        folder: PathBuf,
    },
}

/// Seeds from one to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub RangeInclusive<u64>);

/// A text that names no seeds.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no range of seeds: write 1..100, both included, or one number")]
pub struct SeedsError(String);

impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Self, SeedsError> {
        let refused = || SeedsError(text.to_owned());
        let number = |text: &str| text.parse::<u64>().map_err(|_| refused());
        let (from, to) = match text.split_once("..") {
            Some((from, to)) => (number(from)?, number(to.trim_start_matches('='))?),
            None => (number(text)?, number(text)?),
        };
        if from > to {
            return Err(refused());
        }
        Ok(Self(from..=to))
    }
}

impl Cli {
    /// Runs what was asked for and prints what it came to.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(Command::Backlog { claims, folder }) = self.command {
            let report = backlog(&BacklogSettings { claims, folder }).await?;
            println!("{report}");
            return Ok(ExitCode::from(u8::from(!report.violations.is_empty())));
        }
        let seeds = match (&self.seeds, self.seed) {
            (Some(Seeds(seeds)), _) => seeds.clone(),
            (None, Some(seed)) => seed..=seed,
            (None, None) => {
                let seed = rand::random::<u32>().into();
                seed..=seed
            }
        };
        let earlier = match &self.resume {
            Some(file) => report::read(file).with_context(|| format!("read {}", file.display()))?,
            None => Vec::new(),
        };
        let mut totals = Totals::default();
        earlier.iter().for_each(|report| totals.add(report));
        for seed in seeds {
            if earlier.iter().any(|report| report.seed == seed) {
                continue;
            }
            let faults = self.faults.as_ref().map(|kinds| format!(" --faults {kinds}"));
            let again = format!("--seconds {}{}", self.seconds, faults.unwrap_or_default());
            println!("seed {seed} (again: torture --seed {seed} {again})");
            let report = run(&RunSettings {
                seed,
                length: Duration::from_secs(self.seconds),
                faults: self.faults.clone().unwrap_or_default(),
                rate: self.rate,
                folder: self.folder.clone(),
                keep: self.keep,
            })
            .await
            .with_context(|| format!("seed {seed} has no verdict"))?;
            println!("{report}\n");
            if let Some(file) = &self.resume {
                report::append(file, &report).with_context(|| format!("write {}", file.display()))?;
            }
            totals.add(&report);
        }
        println!("{totals}");
        Ok(ExitCode::from(u8::from(!totals.hold())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_with_both_ends_or_one_number() {
        for (text, seeds) in [("1..3", 1..=3), ("1..=3", 1..=3), ("7", 7..=7)] {
            assert_eq!(text.parse::<Seeds>().expect(text), Seeds(seeds));
        }
        for bad in ["", "x", "3..1", "1..", "-1"] {
            assert!(bad.parse::<Seeds>().is_err(), "{bad}");
        }
    }
}
