//! `coupon audit`: checks Redis, Kafka and Postgres against each other.
//!
//! The comparisons (`slots`, `claims`, `events`, `offsets`, `successes`) are fed with what `read` reads and do no I/O.
//! The users of the campaigns that are looked at lie in memory, about 300 bytes each; rows and records pass in pages.

pub mod claims;
pub mod events;
pub mod finding;
pub mod offsets;
pub mod read;
pub mod settled;
pub mod slots;
pub mod successes;

use std::{
    fmt,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use campaign::{
    conservation::Tally,
    kafka::client::KafkaError,
    name::{CampaignName, NameError},
    naming::PrefixError,
    postgres::{campaign::CampaignRow, database::DatabaseError},
    redis::connection::RedisError,
};
use clap::Args;

use self::{finding::confirmed, settled::Unsettled};
pub use self::{
    finding::{Finding, FindingKind},
    read::Sources,
    successes::{Successes, SuccessesError},
};
use crate::connections::InstallationArguments;

/// Flags of `coupon audit`.
#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    /// The campaign; all live ones if it is not given.
    #[arg(long)]
    pub campaign: Option<String>,
    /// Who was told SUCCESS, as `coupon load --successes` writes it: must be the coupons' set.
    #[arg(long, requires = "campaign")]
    pub successes: Option<PathBuf>,
    /// How long to wait until nothing is pending.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub settle_within: Duration,
    /// Looks at a running system at once: twice, and reports what both looks saw.
    #[arg(long, conflicts_with = "settle_within")]
    pub now: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub installation: InstallationArguments,
}

/// In which state the system must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing is on its way.
    Quiet,
    /// Claims, events and cancels may be on their way.
    Running,
}

/// Why an audit could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Redis.
    #[error("the audit knows nothing of Redis: {0}")]
    Redis(#[source] RedisError),
    /// Kafka.
    #[error("the audit knows nothing of Kafka: {0}")]
    Kafka(#[source] KafkaError),
    /// Postgres.
    #[error("the audit knows nothing of Postgres: {0}")]
    Postgres(#[source] DatabaseError),
    /// No live campaign has the name.
    #[error("no live campaign is called {0}: check the name and the namespace")]
    NoSuchCampaign(CampaignName),
    /// The campaign's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The key prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The list of successes.
    #[error("{path}: {source}")]
    Successes {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: SuccessesError,
    },
}

/// The numbers of one campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CampaignReport {
    /// Which.
    pub campaign: CampaignName,
    /// Coupons to give, as Postgres has it.
    pub quantity: i64,
    /// Both sides of the equation; `None` where Redis has no state.
    pub tally: Option<Tally>,
    /// Coupons, canceled ones included.
    pub coupons: u64,
    /// Coupons that are not their user's first.
    pub duplicate_rows: u64,
    /// Stored claims that were rejected.
    pub revoked: u64,
}

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: quantity {}", self.campaign, self.quantity)?;
        match &self.tally {
            Some(tally) => write!(
                f,
                ", available {}, taken {}, pending {}, issued {}, parked {}",
                tally.available(),
                tally.taken,
                tally.pending,
                tally.issued,
                tally.parked
            )?,
            None => write!(f, ", no state in Redis")?,
        }
        write!(f, ", coupons {}, revoked {}", self.coupons, self.revoked)
    }
}

/// What an audit came to.
#[derive(Debug)]
pub struct Audit {
    /// What does not fit; empty: clean.
    pub findings: Vec<Finding>,
    /// The numbers.
    pub campaigns: Vec<CampaignReport>,
    /// What was still to do when the wait ended.
    pub unsettled: Unsettled,
}

impl Audit {
    /// Whether everything fits.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for campaign in &self.campaigns {
            writeln!(f, "{campaign}")?;
        }
        if !self.unsettled.is_quiet() {
            writeln!(f, "not settled: {}", self.unsettled)?;
        }
        for finding in &self.findings {
            writeln!(f, "FOUND {finding}")?;
        }
        match self.findings.len() {
            0 => write!(f, "clean: Redis, Kafka and Postgres agree"),
            kinds => write!(f, "not clean: {kinds} kinds of findings"),
        }
    }
}

/// Between the two looks at a running system.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(1);

/// Looks at a system that must be quiet.
pub async fn quiet(
    sources: &Sources,
    campaigns: &[CampaignRow],
    successes: Option<&Successes>,
) -> Result<Audit, AuditError> {
    let look = sources.look(campaigns, Expect::Quiet, successes).await?;
    Ok(Audit {
        findings: look.findings,
        campaigns: look.campaigns,
        unsettled: Unsettled::default(),
    })
}

/// Looks twice at a running system and keeps what both looks saw.
pub async fn running(
    sources: &Sources,
    campaigns: &[CampaignRow],
    successes: Option<&Successes>,
) -> Result<Audit, AuditError> {
    let first = sources.look(campaigns, Expect::Running, successes).await?;
    if first.findings.is_empty() {
        return Ok(Audit {
            findings: Vec::new(),
            campaigns: first.campaigns,
            unsettled: Unsettled::default(),
        });
    }
    tokio::time::sleep(SECOND_LOOK_AFTER).await;
    let second = sources.look(campaigns, Expect::Running, successes).await?;
    Ok(Audit {
        findings: confirmed(first.findings, &second.findings),
        campaigns: second.campaigns,
        unsettled: Unsettled::default(),
    })
}

/// The whole of `coupon audit`, without the printing.
pub async fn audit(args: &AuditArgs) -> Result<Audit, AuditError> {
    let installation = &args.installation;
    let name = match &args.campaign {
        Some(text) => Some(CampaignName::parse(text, &installation.installation.namespace)?),
        None => None,
    };
    let successes = args.successes.as_deref().map(read_successes).transpose()?;
    let sources = Sources::connect(installation).await?;
    let campaigns = sources.campaigns(name.as_ref()).await?;
    if args.now {
        return running(&sources, &campaigns, successes.as_ref()).await;
    }
    let unsettled = sources
        .settled(
            &campaigns,
            args.settle_within,
            |left| tracing::debug!(%left, "not settled yet"),
        )
        .await?;
    let audit = quiet(&sources, &campaigns, successes.as_ref()).await?;
    Ok(Audit { unsettled, ..audit })
}

fn read_successes(path: &Path) -> Result<Successes, AuditError> {
    let failed = |source| AuditError::Successes {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(|error| failed(error.into()))?;
    Successes::read(BufReader::new(file)).map_err(failed)
}

/// Runs `coupon audit` and prints what it came to: 0 clean, 1 findings, 2 could not be made.
pub async fn run(args: AuditArgs) -> ExitCode {
    match audit(&args).await {
        Ok(audit) => {
            println!("{audit}");
            ExitCode::from(u8::from(!audit.is_clean()))
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
