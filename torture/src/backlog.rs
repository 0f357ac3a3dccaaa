//! Everything dies at once before a great backlog of claims, and starts again at once: all are settled, none is lost.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use campaign::{identity::UserId, name::CampaignName, postgres::campaign::OnCancel};
use coupon::audit::Sources;
use futures::{StreamExt, stream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    checker::{self, Violation},
    crowd::{Client, Crowd, Door, Sale},
    history::{Operation, Recorder},
    nemesis::Losable,
    owner::terms,
    plan::Target,
    run::{RunError, make_anew, panics},
    system::System,
    verdict,
};

/// How long it may take until all of it is settled.
const SETTLED_WITHIN: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Clients who claim at the same time.
const AT_ONCE: usize = 512;
/// Claims of one client until he is told SUCCESS.
const MOST_CLAIMS: u32 = 100;

/// What to run.
#[derive(Clone, Debug)]
pub struct BacklogSettings {
    /// Claims that wait when everything dies.
    pub claims: u64,
    /// Where logs lie.
    pub folder: PathBuf,
}

/// What it came to.
#[derive(Clone, Debug)]
pub struct BacklogReport {
    /// Users who were told SUCCESS.
    pub successes: u64,
    /// Coupons in the end.
    pub coupons: u64,
    /// How long the claims took.
    pub claimed_in: Duration,
    /// From the death of everything until every process was ready again.
    pub up_after: Duration,
    /// From the death of everything until all of it was settled.
    pub settled_after: Duration,
    /// What is wrong.
    pub violations: Vec<Violation>,
}

impl fmt::Display for BacklogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} claims were SUCCESS within {:.1} s and waited; after everything had died at once, all was up again after \
             {:.1} s and settled after {:.1} s: {} coupons",
            self.successes,
            self.claimed_in.as_secs_f64(),
            self.up_after.as_secs_f64(),
            self.settled_after.as_secs_f64(),
            self.coupons
        )?;
        for violation in self.violations.iter().take(10) {
            writeln!(f, "VIOLATION {}: {}", violation.kind, violation.subject)?;
            for line in violation.evidence.iter().take(10) {
                writeln!(f, "    {line}")?;
            }
        }
        match self.violations.len() {
            0 => write!(f, "none is lost"),
            count => write!(f, "BROKEN: {count} violations"),
        }
    }
}

/// Runs it.
pub async fn backlog(settings: &BacklogSettings) -> Result<BacklogReport, RunError> {
    let folder = settings.folder.join("backlog");
    make_anew(&folder)?;
    let system = Arc::new(System::launch("torture-backlog", &folder).await?);
    let connections = system.connect().await?;
    let name = CampaignName::new(&connections.installation.namespace, "backlog")?;
    let quantity = i64::try_from(settings.claims).unwrap_or(i64::MAX);
    let applied = connections
        .aligner
        .apply(&name, &terms(quantity, OnCancel::Restock))
        .await?;
    let stop = CancellationToken::new();
    let _ends_with_this = stop.clone().drop_guard();
    let watching = tokio::spawn({
        let (system, stop) = (Arc::clone(&system), stop.clone());
        async move { stop.run_until_cancelled(system.watch()).await }
    });

    // No worker yet: whatever is claimed waits.
    for process in system.intakes() {
        process.start().await?;
    }
    for process in system.intakes() {
        while !process.is_ready(&system.client).await {
            sleep(LOOK_AGAIN).await;
        }
    }
    let doors = system.intakes().iter().map(Door::of).collect();
    let sale = Sale {
        name,
        id: applied.campaign.id,
        share: 1.0,
    };
    let history = Arc::new(Recorder::default());
    let crowd = Crowd::new(
        doors,
        vec![sale.clone()],
        1,
        1.0,
        Losable::default(),
        Arc::clone(&history),
    );
    let began = Instant::now();
    stream::iter(0..settings.claims)
        .for_each_concurrent(AT_ONCE, |number| claim(&crowd, &sale, number))
        .await;
    let claimed_in = began.elapsed();

    let died = Instant::now();
    let (up_after, settled_after) = restart_everything(&system, died).await?;
    stop.cancel();
    if let Some(Err(error)) = watching.await? {
        return Err(error.into());
    }
    let operations = history.take();
    let (held, mut violations) = verdict::read(&system.arguments, &connections.database).await?;
    violations.extend(checker::check(&operations, &held, &[]));
    violations.extend(panics(&system));
    let successes = |operation: &&Operation| operation.word() == "SUCCESS";
    Ok(BacklogReport {
        successes: operations.iter().filter(successes).count() as u64,
        coupons: held.values().map(|held| held.rows.len() as u64).sum(),
        claimed_in,
        up_after,
        settled_after,
        violations,
    })
}

/// One user, until he is told SUCCESS.
async fn claim(crowd: &Crowd, sale: &Sale, number: u64) {
    let Ok(user) = format!("u{number}").parse::<UserId>() else {
        return;
    };
    let never = CancellationToken::new();
    let client = Client::new(crowd, sale, user, &never);
    let door = usize::try_from(number).unwrap_or_default() % crowd.doors.len();
    for _ in 0..MOST_CLAIMS {
        let told = client.claim(door, Some("backlog"), Duration::from_secs(10)).await;
        if told.is_some_and(|told| matches!(told.word.as_str(), "SUCCESS" | "SOLD_OUT")) {
            return;
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Kills processes and servers, and starts all of them at the same time: what comes up too early ends and is started again.
async fn restart_everything(system: &System, died: Instant) -> Result<(Duration, Duration), RunError> {
    for process in &system.processes {
        process.end().await;
    }
    let mut redis = system.redis.lock().await;
    let mut kafka = system.kafka.lock().await;
    let mut postgres = system.postgres.lock().await;
    kafka.kill();
    postgres.kill();
    for target in Target::all() {
        system.process(target).start().await?;
    }
    tokio::try_join!(redis.restart_empty(), kafka.restart(), postgres.restart())?;
    drop((redis, kafka, postgres));
    system.ready(SETTLED_WITHIN).await?;
    let up_after = died.elapsed();

    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let sources = Sources::connect(&system.arguments).await;
        let quiet = match sources {
            Ok(sources) => is_settled(system, &sources, deadline).await,
            Err(error) => Err(error.into()),
        };
        match quiet {
            Ok(true) => return Ok((up_after, died.elapsed())),
            Err(error) if Instant::now() > deadline => return Err(error),
            _ if Instant::now() > deadline => return Ok((up_after, died.elapsed())),
            _ => sleep(LOOK_AGAIN).await,
        }
    }
}

/// The state is there and nothing is on its way. Nobody claims any more, so the rebuild is asked for here.
async fn is_settled(system: &System, sources: &Sources, deadline: Instant) -> Result<bool, RunError> {
    let connections = system.connect().await?;
    let campaigns = sources.campaigns(None).await?;
    for campaign in &campaigns {
        connections.aligner.round(&campaign.name).await?;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    Ok(sources.settled(&campaigns, left, |_| {}).await?.is_quiet())
}
