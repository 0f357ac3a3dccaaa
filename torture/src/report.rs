//! What a seed came to, and what many came to together. One JSON line a seed, so that counts add up over invocations.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::checker::Violation;

/// Violations that a report shows, and lines of evidence of each.
const SHOWN: usize = 10;
const SHOWN_EVIDENCE: usize = 30;

/// What a seed came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeedReport {
    /// Which.
    pub seed: u64,
    /// How long faults were inflicted.
    pub seconds: u64,
    /// Claims that clients sent.
    pub claims: u64,
    /// Questions by their answers, as `claim SUCCESS`.
    pub answers: BTreeMap<String, u64>,
    /// Faults that were inflicted, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Edits of the owner, by kind.
    pub edits: BTreeMap<String, u64>,
    /// Starts of processes that had ended by themselves or were no longer alive.
    pub restarts: u64,
    /// Coupons at the end.
    pub coupons: u64,
    /// From the last fault's end until nothing was on its way.
    pub rested_after_ms: u64,
    /// What is wrong.
    pub violations: Vec<Violation>,
}

impl SeedReport {
    /// Whether the promise held.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

fn counts(f: &mut fmt::Formatter<'_>, title: &str, counts: &BTreeMap<String, u64>) -> fmt::Result {
    write!(f, "{title:<9}")?;
    for (name, count) in counts {
        write!(f, " {name}: {count};")?;
    }
    writeln!(f)
}

impl fmt::Display for SeedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} s, {} claims, {} coupons, {} faults, {} restarts, at rest after {:.1} s",
            self.seed,
            self.seconds,
            self.claims,
            self.coupons,
            self.faults.values().sum::<u64>(),
            self.restarts,
            self.rested_after_ms as f64 / 1000.0
        )?;
        counts(f, "answers", &self.answers)?;
        counts(f, "faults", &self.faults)?;
        counts(f, "edits", &self.edits)?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "VIOLATION {}: {}", violation.kind, violation.subject)?;
            for line in violation.evidence.iter().take(SHOWN_EVIDENCE) {
                writeln!(f, "    {line}")?;
            }
        }
        match self.violations.len() {
            0 => write!(f, "seed {} holds", self.seed),
            count => write!(f, "seed {} BROKEN: {count} violations", self.seed),
        }
    }
}

/// What several seeds came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    seeds: u64,
    broken: Vec<u64>,
    claims: u64,
    coupons: u64,
    answers: BTreeMap<String, u64>,
    faults: BTreeMap<String, u64>,
    edits: BTreeMap<String, u64>,
}

impl Totals {
    /// Adds a seed.
    pub fn add(&mut self, report: &SeedReport) {
        self.seeds += 1;
        self.claims += report.claims;
        self.coupons += report.coupons;
        if !report.holds() {
            self.broken.push(report.seed);
        }
        for (mine, theirs) in [
            (&mut self.answers, &report.answers),
            (&mut self.faults, &report.faults),
            (&mut self.edits, &report.edits),
        ] {
            for (name, count) in theirs {
                *mine.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// Whether the promise held under every seed.
    pub fn hold(&self) -> bool {
        self.broken.is_empty()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        writeln!(
            f,
            "{} seeds, {} claims, {} coupons, {faults} faults",
            self.seeds, self.claims, self.coupons
        )?;
        counts(f, "answers", &self.answers)?;
        counts(f, "faults", &self.faults)?;
        counts(f, "edits", &self.edits)?;
        match self.hold() {
            true => write!(f, "all hold"),
            false => write!(f, "BROKEN: seeds {:?}", self.broken),
        }
    }
}

/// Reports of earlier invocations; a missing file has none. A line that was cut short by an interruption counts as none.
pub fn read(file: &Path) -> io::Result<Vec<SeedReport>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Appends a report.
pub fn append(file: &Path, report: &SeedReport) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    File::options()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(line.as_bytes())
}
