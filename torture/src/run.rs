//! One seed, from the first server to the verdict.

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use campaign::{
    identity::UserId,
    kafka::client::KafkaError,
    name::{CampaignName, NameError},
    postgres::{campaign::OnCancel, database::DatabaseError},
};
use coupon::{
    audit::{self, Sources},
    connections::Connections,
};
use futures::{StreamExt, stream};
use testkit::child::ServerError;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    checker::{self, Violation},
    crowd::{Client, Crowd, Door, Sale},
    history::{self, Ask, Operation, Recorder},
    nemesis::{Losable, Nemesis},
    owner::{Owner, terms},
    plan::{self, ChosenKinds},
    report::SeedReport,
    system::{System, SystemError},
    verdict,
};

/// How long a healed system may take until everything is settled and every door serves again.
pub const REST_LIMIT: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Winners whose status is asked for at the end.
const FINAL_STATUSES: usize = 300;

/// What to run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Draws faults, clients and edits.
    pub seed: u64,
    /// How long faults begin.
    pub length: Duration,
    /// Kinds of faults.
    pub faults: ChosenKinds,
    /// New clients a second.
    pub rate: f64,
    /// Where logs and evidence lie.
    pub folder: PathBuf,
    /// Keeps them also where nothing is wrong.
    pub keep: bool,
}

/// Why a seed has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The system did not come up.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A server did not come up, or not again.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The campaigns.
    #[error(transparent)]
    Align(#[from] campaign::align::AlignError),
    /// Their names.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The audit.
    #[error(transparent)]
    Audit(#[from] audit::AuditError),
    /// The rows.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The log.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// The run's folder.
    #[error("the run's folder {folder}: {source}")]
    Folder {
        /// Which.
        folder: PathBuf,
        /// As the system put it.
        source: io::Error,
    },
    /// A task died.
    #[error("a part of the run ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A running system with its clients, its owner and its nemesis.
struct Stage {
    system: Arc<System>,
    connections: Arc<Connections>,
    history: Arc<Recorder>,
    nemesis: Arc<Nemesis>,
    owner: Arc<Owner>,
    crowd: Arc<Crowd>,
}

/// Runs one seed.
pub async fn run(settings: &RunSettings) -> Result<SeedReport, RunError> {
    let folder = settings.folder.join(format!("seed-{}", settings.seed));
    make_anew(&folder)?;
    let failed = folder_error(&folder);
    let stage = Stage::open(settings, &folder).await?;
    let (report, operations) = stage.play(settings).await?;
    if report.holds() && !settings.keep {
        fs::remove_dir_all(&folder).map_err(&failed)?;
    } else {
        write_history(&folder.join("history.jsonl"), &operations).map_err(&failed)?;
        fs::write(folder.join("report.txt"), report.to_string()).map_err(&failed)?;
    }
    Ok(report)
}

/// An empty folder.
pub fn make_anew(folder: &Path) -> Result<(), RunError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(folder_error(folder)(error)),
        _ => fs::create_dir_all(folder).map_err(folder_error(folder)),
    }
}

fn folder_error(folder: &Path) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Folder {
        folder: folder.to_owned(),
        source,
    }
}

fn write_history(file: &Path, operations: &[Operation]) -> io::Result<()> {
    let mut out = BufWriter::new(fs::File::create(file)?);
    for operation in operations {
        serde_json::to_writer(&mut out, operation)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Name, quantity as a share of the clients that will come, share of the clients, and what a cancel does: one that is hard to
/// sell out, one that is sold out at once, one in between, and one whose slots do not come back.
const CAMPAIGNS: [(&str, f64, f64, OnCancel); 4] = [
    ("large", 0.60, 0.50, OnCancel::Restock),
    ("tiny", 0.01, 0.15, OnCancel::Restock),
    ("middle", 0.12, 0.25, OnCancel::Restock),
    ("kept", 0.06, 0.10, OnCancel::Retain),
];

impl Stage {
    async fn open(settings: &RunSettings, folder: &Path) -> Result<Self, RunError> {
        let system = Arc::new(System::launch(&format!("torture-{}", settings.seed), folder).await?);
        let connections = Arc::new(system.connect().await?);
        let clients = settings.rate * settings.length.as_secs_f64();
        let mut sales = Vec::new();
        for (name, quantity, share, on_cancel) in CAMPAIGNS {
            let name = CampaignName::new(&connections.installation.namespace, name)?;
            let quantity = ((clients * quantity) as i64).max(1);
            let applied = connections.aligner.apply(&name, &terms(quantity, on_cancel)).await?;
            sales.push(Sale {
                name,
                id: applied.campaign.id,
                share,
            });
        }
        system.start_processes().await?;
        let doors = system.intakes().iter().map(Door::of).collect();
        let losable = Losable::default();
        let history = Arc::new(Recorder::default());
        let names = sales.iter().map(|sale| sale.name.clone()).collect();
        Ok(Self {
            nemesis: Nemesis::new(
                Arc::clone(&system),
                Arc::clone(&connections),
                Arc::clone(&history),
                Arc::clone(&losable),
            ),
            owner: Owner::new(connections.aligner.clone(), names, Arc::clone(&losable)),
            crowd: Crowd::new(
                doors,
                sales,
                settings.seed,
                settings.rate,
                losable,
                Arc::clone(&history),
            ),
            system,
            connections,
            history,
        })
    }

    async fn play(self, settings: &RunSettings) -> Result<(SeedReport, Vec<Operation>), RunError> {
        let steps = plan::plan(
            settings.seed,
            settings.length,
            &settings.faults,
            self.system.shifts_clocks(),
        );
        let (stop_clients, stop_all) = (CancellationToken::new(), CancellationToken::new());
        let _ends_with_this = stop_all.clone().drop_guard();
        let watching = tokio::spawn({
            let (system, stop) = (Arc::clone(&self.system), stop_all.clone());
            async move { stop.run_until_cancelled(system.watch()).await }
        });
        let rounds = tokio::spawn({
            let (owner, stop) = (Arc::clone(&self.owner), stop_all.clone());
            async move { owner.rounds(&stop).await }
        });
        let editing = tokio::spawn({
            let (owner, stop, seed) = (Arc::clone(&self.owner), stop_clients.clone(), settings.seed);
            async move { owner.edit(seed, &stop).await }
        });
        let clients = tokio::spawn({
            let (crowd, stop) = (Arc::clone(&self.crowd), stop_clients.clone());
            async move { crowd.come(&stop).await }
        });
        self.nemesis.run(&steps).await;
        stop_clients.cancel();
        clients.await?;
        editing.await?;
        self.nemesis.heal().await?;
        let healed = Instant::now();

        let mut violations = self.recover(healed + REST_LIMIT).await?;
        let rested_after = healed.elapsed();
        self.final_statuses().await;
        stop_all.cancel();
        rounds.await?;
        if let Some(Err(error)) = watching.await? {
            return Err(error.into());
        }

        let operations = self.history.take();
        let (held, findings) = verdict::read(&self.system.arguments, &self.connections.database).await?;
        violations.extend(findings);
        violations.extend(checker::check(&operations, &held, &self.nemesis.put_backs()));
        violations.extend(panics(&self.system));
        let processes = &self.system.processes;
        let report = SeedReport {
            seed: settings.seed,
            seconds: settings.length.as_secs(),
            claims: self.crowd.claims(),
            answers: history::count(&operations),
            faults: self.nemesis.inflicted(),
            edits: self.owner.edits(),
            restarts: processes.iter().map(|p| p.ended_by_itself() + p.not_alive()).sum(),
            coupons: held.values().map(|held| held.rows.len() as u64).sum(),
            rested_after_ms: u64::try_from(rested_after.as_millis()).unwrap_or(u64::MAX),
            violations,
        };
        for process in processes {
            process.end().await;
        }
        Ok((report, operations))
    }

    /// Everything is healed: processes get ready, doors serve, what is on its way is settled.
    async fn recover(&self, deadline: Instant) -> Result<Vec<Violation>, RunError> {
        let mut violations = Vec::new();
        let broken = |kind: &str, subject: String| Violation {
            kind: kind.to_owned(),
            subject,
            evidence: Vec::new(),
        };
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Err(error) = self.system.ready(left()).await {
            violations.push(broken("not-ready", error.to_string()));
        }
        while let Err(reason) = self.owner.settle().await {
            if Instant::now() > deadline {
                violations.push(broken("not-editable", reason));
                break;
            }
            sleep(LOOK_AGAIN).await;
        }
        for sale in &self.crowd.sales {
            for door in 0..self.crowd.doors.len() {
                if !self.serves(sale, door, deadline).await? {
                    let subject = format!("{} at door {door}", sale.name);
                    violations.push(broken("does-not-serve-again", subject));
                }
            }
        }
        let sources = Sources::connect(&self.system.arguments).await?;
        let campaigns = sources.campaigns(None).await?;
        loop {
            match sources.settled(&campaigns, left(), |_| {}).await {
                Ok(unsettled) if unsettled.is_quiet() => break,
                Ok(unsettled) => {
                    violations.push(broken("not-at-rest", unsettled.to_string()));
                    break;
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => sleep(LOOK_AGAIN).await,
            }
        }
        Ok(violations)
    }

    /// Whether a new user gets an answer that stays.
    async fn serves(&self, sale: &Sale, door: usize, deadline: Instant) -> Result<bool, RunError> {
        let Ok(user) = format!("late-{door}").parse::<UserId>() else {
            return Ok(false);
        };
        let never = CancellationToken::new();
        let client = Client::new(&self.crowd, sale, user, &never);
        while Instant::now() < deadline {
            let told = client.claim(door, Some("late"), Duration::from_secs(4)).await;
            if told.is_some_and(|told| matches!(told.word.as_str(), "SUCCESS" | "SOLD_OUT")) {
                return Ok(true);
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(false)
    }

    /// What some of the winners are told in the end.
    async fn final_statuses(&self) {
        let operations = self.history.take();
        let won = operations.iter().filter_map(|operation| {
            let told = operation.told.as_ref()?;
            match operation.ask {
                Ask::Claim { .. } if told.word == "SUCCESS" => {
                    Some((operation.campaign.clone(), operation.user.clone(), told.request?))
                }
                _ => None,
            }
        });
        let won: Vec<_> = won.collect();
        for operation in operations {
            self.history.add(operation);
        }
        let every = (won.len() / FINAL_STATUSES).max(1);
        stream::iter(won.into_iter().step_by(every))
            .for_each_concurrent(16, |(campaign, user, request)| async move {
                let never = CancellationToken::new();
                if let Some(sale) = self.crowd.sales.iter().find(|sale| sale.name == campaign) {
                    let client = Client::new(&self.crowd, sale, user, &never);
                    client.status(0, request).await;
                }
            })
            .await;
    }
}

/// Panics of processes, by their logs.
pub fn panics(system: &System) -> Vec<Violation> {
    let panicked = system.processes.iter().filter_map(|process| {
        let evidence = process.panics();
        (!evidence.is_empty()).then(|| Violation {
            kind: "panic".to_owned(),
            subject: format!("{:?}", process.target),
            evidence,
        })
    });
    panicked.collect()
}
