//! A rebuild of a million holders: how long the door is shut, how long Redis is blocked at most, and what it takes of
//! memory.

use std::time::{Duration, Instant};

use campaign::{
    name::CampaignName,
    rebuild::{Force, Rebuilt},
};
use clap::Args;
use coupon::connections::InstallationArguments;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::Effort;
use crate::{
    error::{BenchError, Result},
    program::{self, memory_mib},
    report::{Findings, Ratio, Section, rate},
    stage::{Installation, Stage},
};

/// Between two questions to Redis while it is watched.
const PING_EVERY: Duration = Duration::from_millis(1);

/// The child that rebuilds; its flags.
#[derive(Clone, Debug, Args)]
pub struct RebuildPlan {
    #[command(flatten)]
    installation: InstallationArguments,
    /// Whose state.
    #[arg(long)]
    campaign: String,
}

/// What the child saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RebuildReport {
    users: u64,
    shut_seconds: f64,
    idle_mib: f64,
    most_mib: f64,
}

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let users = effort.size(1_000_000, 100_000);
    let installation = stage.installation().await?;
    let campaign = installation.campaign(users as i64 * 2).await?;
    insert_holders(&installation, &campaign, users).await?;
    // Over a state of the same size: the old one has to be removed, too.
    installation.reserve(&campaign, users).await?;

    let mut connection = stage.redis.connection().await?;
    for (name, value) in [("slowlog-log-slower-than", "500"), ("slowlog-max-len", "4096")] {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg(name)
            .arg(value)
            .query_async::<()>(&mut connection)
            .await?;
    }
    redis::cmd("SLOWLOG")
        .arg("RESET")
        .query_async::<()>(&mut connection)
        .await?;
    let ends = CancellationToken::new();
    let (longest_ping, report) = tokio::join!(longest_ping(stage, &ends), async {
        let report = in_child(&installation, &campaign).await;
        ends.cancel();
        report
    });
    let (longest_ping, report) = (longest_ping?, report?);
    let longest_command = longest_command(stage).await?;
    if report.users < users as u64 {
        return Err(BenchError::Invalid(format!(
            "{} of {users} users were rebuilt",
            report.users
        )));
    }

    let wait = installation.arguments.installation.settle_after().as_secs_f64();
    let extra = report.most_mib - report.idle_mib;
    let mut section = Section::new(
        "Rebuild",
        format!(
            "{} holders in Postgres, over a state of as many users in Redis. The door is shut from `begin` to `commit`; \
             {wait:.0} s of that is the wait for what is answered SUCCESS to be in Kafka.",
            rate(users as f64)
        ),
        &["what", "measured"],
    );
    section.row([
        "time the door was shut".to_owned(),
        format!("{:.1} s", report.shut_seconds),
    ]);
    section.row([
        "of that, work".to_owned(),
        format!("{:.1} s", report.shut_seconds - wait),
    ]);
    section.row([
        "longest command in Redis (SLOWLOG)".to_owned(),
        format!("{longest_command:.1} ms"),
    ]);
    section.row([
        "longest wait of a PING beside it (with the scheduling of a busy machine)".to_owned(),
        format!("{longest_ping:.1} ms"),
    ]);
    section.row([
        "memory of the rebuilding process above idle".to_owned(),
        format!("{extra:.0} MiB ({:.0} MiB in all)", report.most_mib),
    ]);
    Ok(Findings {
        ratios: vec![
            Ratio::at_most("rebuild_block_ms", longest_command, 10.0),
            Ratio::at_most("rebuild_mib", extra, 64.0),
        ],
        sections: vec![section],
    })
}

async fn insert_holders(installation: &Installation, campaign: &CampaignName, users: usize) -> Result<()> {
    let id = installation.id_of(campaign).await?;
    sqlx::query(
        "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at) \
         SELECT gen_random_uuid(), $1, 'holder-' || n, 'code-' || n, 'abcdefgh-' || n / 256 || '.' || n % 256, now() \
         FROM generate_series(1, $2) AS n",
    )
    .bind(id.0)
    .bind(users as i64)
    .execute(&installation.pool)
    .await?;
    sqlx::query("UPDATE campaign SET issued = $2 WHERE id = $1")
        .bind(id.0)
        .bind(users as i64)
        .execute(&installation.pool)
        .await?;
    Ok(())
}

/// Asks Redis again and again; the longest answer in ms.
async fn longest_ping(stage: &Stage, ends: &CancellationToken) -> Result<f64> {
    let mut connection = stage.redis.connection().await?;
    let mut longest = Duration::ZERO;
    while !ends.is_cancelled() {
        let began = Instant::now();
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        longest = longest.max(began.elapsed());
        tokio::time::sleep(PING_EVERY).await;
    }
    Ok(longest.as_secs_f64() * 1_000.0)
}

/// The longest command by Redis' own clock, in ms. What is shorter than half a millisecond is not in its log.
async fn longest_command(stage: &Stage) -> Result<f64> {
    let mut connection = stage.redis.connection().await?;
    let entries: Vec<Vec<redis::Value>> = redis::cmd("SLOWLOG")
        .arg("GET")
        .arg(-1)
        .query_async(&mut connection)
        .await?;
    let micros = entries.iter().filter_map(|entry| match entry.get(2) {
        Some(redis::Value::Int(micros)) => Some(*micros),
        _ => None,
    });
    Ok(micros.max().unwrap_or(500) as f64 / 1_000.0)
}

async fn in_child(installation: &Installation, campaign: &CampaignName) -> Result<RebuildReport> {
    let output = tokio::process::Command::new(program::own_program()?)
        .arg("rebuild")
        .args(program::installation_flags(&installation.arguments))
        .args(["--campaign", &campaign.to_string()])
        .kill_on_drop(true)
        .stderr(std::process::Stdio::inherit())
        .output()
        .await
        .map_err(BenchError::io("run the rebuild"))?;
    serde_json::from_slice(&output.stdout).map_err(|source| BenchError::Report {
        what: "the rebuild",
        source,
    })
}

/// The child: connects, looks at its memory, rebuilds, and looks again.
pub async fn run(plan: RebuildPlan) -> Result<impl Serialize> {
    let connections = plan.installation.connect().await?;
    let campaign = connections.campaign(&plan.campaign).await?.name;
    let (idle_mib, _) = memory_mib(std::process::id())?;
    let rebuilder = &connections.aligner.rebuilder;
    match rebuilder.rebuild(&campaign, Force::Always).await? {
        Rebuilt::Done { users, took, .. } => Ok(RebuildReport {
            users,
            shut_seconds: took.as_secs_f64(),
            idle_mib,
            most_mib: memory_mib(std::process::id())?.1,
        }),
        other => Err(BenchError::Invalid(format!("nothing was rebuilt: {other:?}"))),
    }
}
