//! `coupon demo`: the whole system on this machine sells out a campaign under a burst, and then has to account for every
//! coupon.

pub mod summary;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use campaign::{name::CampaignName, process::shutdown_on_signals};
use clap::Args;

use self::summary::Summary;
use crate::{
    audit::{self, Audit, Sources},
    commands::apply,
    load::{self, LoadArgs},
    stack::{Stack, StackSettings},
};

/// How long the worker may take to finish what the burst left.
const SETTLE_WITHIN: Duration = Duration::from_secs(120);
/// When the burst ends, whoever still waits.
const BURST_WITHIN: Duration = Duration::from_secs(300);

/// What to show.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// The campaign.
    #[arg(short, long, default_value = "examples/flash-sale.yaml")]
    pub file: PathBuf,
    /// How many users come.
    #[arg(long, default_value_t = 20_000)]
    pub users: u64,
    /// Users who are served at the same time.
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Share of users who click twice.
    #[arg(long, default_value_t = 0.1)]
    pub double_click: f64,
    /// Share of users who hang up and ask again with their key.
    #[arg(long, default_value_t = 0.05)]
    pub hang_up: f64,
}

/// Says what goes on, and when.
struct Clock(Instant);

impl Clock {
    fn say(&self, line: &str) {
        println!("[{:6.2} s] {line}", self.0.elapsed().as_secs_f64());
    }
}

/// Runs the demo: 0 the promise held, 1 it did not, or the demo could not be run.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let manifest = apply::read(&args.file)?;
    let clock = Clock(Instant::now());
    let shutdown = shutdown_on_signals()?;
    let start = Stack::start(StackSettings::launched()?, |line| clock.say(line));
    let Some(stack) = shutdown.run_until_cancelled(start).await else {
        return Ok(ExitCode::FAILURE);
    };
    let stack = stack?;
    let show = async {
        let applied = stack.apply(&manifest).await?;
        clock.say(&apply::describe(&applied, manifest.spec.quantity));
        burst_and_audit(&args, &stack, &applied.campaign.name, &clock).await
    };
    let summary = tokio::select! {
        summary = show => Some(summary),
        () = stack.failed() => None,
        () = shutdown.cancelled() => None,
    };
    clock.say("stopping: intake, worker, servers");
    stack.stop().await?;
    let Some(summary) = summary.transpose()? else {
        return Ok(ExitCode::FAILURE);
    };
    let broken = summary.broken();
    for what in &broken {
        println!("broken: {what}");
    }
    println!("{summary}");
    Ok(ExitCode::from(u8::from(!broken.is_empty())))
}

async fn burst_and_audit(
    args: &DemoArgs,
    stack: &Stack,
    campaign: &CampaignName,
    clock: &Clock,
) -> anyhow::Result<Summary> {
    clock.say(&format!(
        "{} users claim at once over HTTP at http://{}: {:.0} % click twice, {:.0} % hang up and ask again with their key",
        args.users,
        stack.public_address,
        args.double_click * 100.0,
        args.hang_up * 100.0
    ));
    let report = load::load(&LoadArgs {
        url: format!("http://{}", stack.public_address),
        campaign: campaign.to_string(),
        users: args.users,
        rate: None,
        connections: args.connections,
        double_click: args.double_click,
        hang_up: args.hang_up,
        user_prefix: None,
        timeout: Duration::from_secs(15),
        within: BURST_WITHIN,
        successes: None,
    })
    .await?;
    clock.say("the burst is over");
    println!("{report}");

    clock.say("waiting until every claim is a coupon and every event is told");
    let waited = Instant::now();
    let sources = Sources::connect(&stack.arguments).await?;
    let rows = sources.campaigns(Some(campaign)).await?;
    let unsettled = sources.settled(&rows, SETTLE_WITHIN, |_| ()).await?;
    clock.say(&format!(
        "settled {:.2} s after the last answer; auditing Redis, Kafka and Postgres against each other",
        waited.elapsed().as_secs_f64()
    ));
    let successes = &report.tally.successes;
    let audit = audit::quiet(&sources, &rows, Some(successes)).await?;
    let audit = Audit { unsettled, ..audit };
    println!("{audit}");
    let numbers = audit
        .campaigns
        .first()
        .with_context(|| format!("the audit has not seen campaign {campaign}"))?;
    Ok(Summary {
        quantity: numbers.quantity,
        tally: numbers.tally,
        success: successes.len() as u64,
        duplicate_rows: numbers.duplicate_rows,
        revoked: numbers.revoked,
        users: args.users,
        undecided: report.tally.gave_up,
        clean: audit.is_clean(),
    })
}
