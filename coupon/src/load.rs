//! `coupon load`: users who claim over HTTP, some of whom click twice, some of whom hang up and ask again.
//!
//! What users do (`behaviour`), what an answer means (`answer`) and what it came to (`tally`) are decided without I/O;
//! `client` is one connection, `user` one visit, and this file lets them all go.

pub mod answer;
pub mod behaviour;
pub mod client;
pub mod progress;
pub mod tally;
pub mod user;

use std::{
    fmt,
    fs::File,
    io,
    io::BufWriter,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use campaign::identity::{IdentityError, Instance, UserId};
use clap::Args;
use tokio::{task::JoinSet, time::Instant};

use self::{
    behaviour::{Mix, MixError},
    client::{Ask, ClientError, Connection, Target, TargetError},
    progress::{Counters, Progress},
    tally::Tally,
    user::{Visit, Visits},
};

/// How long a door may take to hear of a new campaign.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Flags of `coupon load`.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Where the door is: `http://host:port`.
    #[arg(long, env = "COUPON_INTAKE_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// What they claim: `namespace/name`, or a bare name.
    #[arg(long)]
    pub campaign: String,
    /// How many users come.
    #[arg(long, default_value_t = 20_000)]
    pub users: u64,
    /// Users a second (open loop: they come whether or not the door keeps up). Without it, as fast as the connections
    /// get their answers.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Users who are served at the same time.
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Share of users who click twice.
    #[arg(long, default_value_t = 0.1)]
    pub double_click: f64,
    /// Share of users who hang up and ask again with their key.
    #[arg(long, default_value_t = 0.05)]
    pub hang_up: f64,
    /// Goes before the number of each user; a random one if it is not given, so that each load has users of its own.
    #[arg(long)]
    pub user_prefix: Option<String>,
    /// How long one answer may take.
    #[arg(long, default_value = "15s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// When the load ends, whoever still waits.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub within: Duration,
    /// Where to write who was told SUCCESS, for `coupon audit --successes`.
    #[arg(long)]
    pub successes: Option<PathBuf>,
}

/// Why a load did not begin or its result is lost.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The URL.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The shares.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// A number that makes no load.
    #[error("--users and --connections must be at least 1, --rate greater than 0")]
    Numbers,
    /// The prefix.
    #[error("--user-prefix makes no user ids: {0}")]
    Prefix(#[from] IdentityError),
    /// Nobody answers.
    #[error("the door does not answer: {0}; is an intake running there?")]
    NoDoor(#[source] ClientError),
    /// The door has no such campaign.
    #[error("the door knows no campaign {0:?}: apply it first, or name it as namespace/name")]
    NoCampaign(String),
    /// The list of successes.
    #[error("the successes cannot be written to {path}: {source}")]
    Successes {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A connection's task died.
    #[error("a connection ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// What a load came to.
#[derive(Debug)]
pub struct LoadReport {
    /// Users who came.
    pub users: u64,
    /// The counts.
    pub tally: Tally,
    /// From the first claim to the last answer.
    pub took: Duration,
}

impl LoadReport {
    /// Claims that were answered, a second.
    pub fn rate(&self) -> f64 {
        let answered: u64 = self.tally.answers.values().sum();
        answered as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        writeln!(
            f,
            "{} users ({} clicked twice, {} hung up and asked again) sent {} claims in {:.2} s: {:.0} answers/s",
            self.users,
            tally.double_clicks,
            tally.hang_ups,
            tally.claims,
            self.took.as_secs_f64(),
            self.rate()
        )?;
        let millis = |share| {
            tally.latencies.percentile(share).map_or_else(
                || "-".to_owned(),
                |latency| format!("{:.1} ms", latency.as_secs_f64() * 1000.0),
            )
        };
        writeln!(
            f,
            "latency  p50 {}  p99 {}  max {}",
            millis(0.5),
            millis(0.99),
            millis(1.0)
        )?;
        write!(f, "answers ")?;
        for (name, count) in &tally.answers {
            write!(f, " {name} {count}")?;
        }
        if tally.unanswered > 0 {
            write!(f, " (no answer {})", tally.unanswered)?;
        }
        write!(f, "\nusers   ")?;
        for (name, count) in &tally.outcomes {
            write!(f, " {name} {count}")?;
        }
        if tally.gave_up > 0 {
            write!(f, " (undecided when the time was over {})", tally.gave_up)?;
        }
        Ok(())
    }
}

/// Lets the users go and waits for the last one.
pub async fn load(args: &LoadArgs) -> Result<LoadReport, LoadError> {
    let target: Target = args.url.parse()?;
    let mix = Mix::new(args.double_click, args.hang_up)?;
    if args.users == 0 || args.connections == 0 || args.rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
        return Err(LoadError::Numbers);
    }
    let prefix = match &args.user_prefix {
        Some(prefix) => prefix.clone(),
        None => format!("{}-", Instance::random()),
    };
    user_id(&prefix, args.users)?;
    find_campaign(&target, args).await?;

    let counters = Arc::new(Counters::default());
    let progress = Progress::show(Arc::clone(&counters), args.users);
    let begin = Instant::now();
    let crowd = Arc::new(Crowd {
        visits: Arc::new(Visits {
            campaign: args.campaign.clone(),
            deadline: begin + args.within,
        }),
        begin,
        users: args.users,
        rate: args.rate,
        prefix,
        mix,
        next: AtomicU64::new(0),
        counters,
    });
    let mut connections = JoinSet::new();
    let most = usize::try_from(args.users).unwrap_or(usize::MAX);
    for _ in 0..args.connections.min(most) {
        let pair = [
            Connection::new(&target, args.timeout),
            Connection::new(&target, args.timeout),
        ];
        connections.spawn(Arc::clone(&crowd).serve(pair));
    }
    let mut tally = Tally::default();
    while let Some(served) = connections.join_next().await {
        tally.merge(served??);
    }
    let took = begin.elapsed();
    drop(progress);
    // Those who never came since the time was over.
    let came: u64 = tally.outcomes.values().sum::<u64>() + tally.gave_up;
    tally.gave_up += args.users - came;
    Ok(LoadReport {
        users: args.users,
        tally,
        took,
    })
}

/// Waits until the door knows the campaign: it hears of a new one within a second. One of many doors may just go.
async fn find_campaign(target: &Target, args: &LoadArgs) -> Result<(), LoadError> {
    let mut connection = Connection::new(target, args.timeout);
    let ask = Ask::Get(format!("/campaigns/{}", args.campaign));
    let deadline = Instant::now() + KNOWN_WITHIN;
    loop {
        match connection.ask(&ask).await.map(|reply| reply.status) {
            Ok(404) | Err(_) if Instant::now() < deadline => tokio::time::sleep(LOOK_AGAIN).await,
            Ok(400 | 404) => return Err(LoadError::NoCampaign(args.campaign.clone())),
            // Closed, paused or not ready yet: the users will hear of it.
            Ok(_) => return Ok(()),
            Err(error) => return Err(LoadError::NoDoor(error)),
        }
    }
}

fn user_id(prefix: &str, number: u64) -> Result<UserId, IdentityError> {
    format!("{prefix}{number}").parse()
}

/// All users of a load.
struct Crowd {
    visits: Arc<Visits>,
    begin: Instant,
    users: u64,
    rate: Option<f64>,
    prefix: String,
    mix: Mix,
    next: AtomicU64,
    counters: Arc<Counters>,
}

impl Crowd {
    /// One user after the other, until there are no more.
    async fn serve(self: Arc<Self>, mut connections: [Connection; 2]) -> Result<Tally, LoadError> {
        let mut tally = Tally::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.users || Instant::now() >= self.visits.deadline {
                return Ok(tally);
            }
            let due = match self.rate {
                None => Instant::now(),
                Some(rate) => self.begin + Duration::from_secs_f64(number as f64 / rate),
            };
            if due >= self.visits.deadline {
                return Ok(tally);
            }
            tokio::time::sleep_until(due).await;
            let user = user_id(&self.prefix, number)?;
            let visit = Visit {
                visits: &self.visits,
                user: &user,
                due,
            };
            let won_before = tally.successes.len();
            visit
                .go(self.mix.behaviour(rand::random()), &mut connections, &mut tally)
                .await;
            let won = tally.successes.len() - won_before;
            self.counters.successes.fetch_add(won as u64, Ordering::Relaxed);
            self.counters.users.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `coupon load` and prints what it came to: 0 every user has an outcome, 1 some have none, 2 it did not begin.
pub async fn run(args: LoadArgs) -> ExitCode {
    match load_and_keep(&args).await {
        Ok(report) => {
            println!("{report}");
            ExitCode::from(u8::from(report.tally.gave_up > 0))
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn load_and_keep(args: &LoadArgs) -> Result<LoadReport, LoadError> {
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |source| LoadError::Successes { path, source }
    };
    // Before the load: a place that cannot be written must not cost it.
    let list = match &args.successes {
        Some(path) => Some((path, File::create(path).map_err(failed(path))?)),
        None => None,
    };
    let report = load(args).await?;
    if let Some((path, file)) = list {
        report
            .tally
            .successes
            .write(BufWriter::new(file))
            .map_err(failed(path))?;
    }
    Ok(report)
}
