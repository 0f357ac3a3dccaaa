//! Memory: an intake with a thousand connections, a worker with a backlog of a million claims.

use super::{Effort, persist::persisted_rate};
use crate::{
    client::ClientPlan,
    error::Result,
    program::{self, memory_mib},
    report::{Findings, Ratio, Section, rate},
    stage::Stage,
};

/// Connections of the intake's client.
const CONNECTIONS: usize = 1_000;

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let claims = effort.size(1_000_000, 100_000);
    let installation = stage.installation().await?;
    let campaign = installation.campaign(100_000_000).await?;
    let intake = program::intake(&installation.arguments, &[], &[]).await?;
    let plan = ClientPlan {
        targets: vec![intake.address],
        campaign: campaign.to_string(),
        connections: CONNECTIONS,
        user_prefix: "memory-".to_owned(),
        warmup: effort.warmup,
        seconds: effort.seconds,
        rate: None,
        requests: None,
    };
    let report = plan.run().await?.only(202)?;
    let (_, intake_most) = memory_mib(intake.pid())?;
    intake.stop().await?;

    let installation = stage.installation().await?;
    let campaign = installation.campaign(claims as i64).await?;
    installation.backlog(&campaign, claims).await?;
    let worker = program::worker(&installation.arguments).await?;
    let persisted = persisted_rate(&installation.pool, &campaign, claims).await?;
    let (_, worker_most) = memory_mib(worker.pid())?;
    worker.stop().await?;

    let mut section = Section::new(
        "Memory",
        "The most that was resident at any time.",
        &["process", "under", "MiB"],
    );
    section.row([
        "intake".to_owned(),
        format!(
            "{} connections, {} accepted claims/s",
            rate(CONNECTIONS as f64),
            rate(report.rate(202))
        ),
        format!("{intake_most:.0}"),
    ]);
    section.row([
        "worker".to_owned(),
        format!(
            "a backlog of {} claims, {} coupons/s",
            rate(claims as f64),
            rate(persisted)
        ),
        format!("{worker_most:.0}"),
    ]);
    Ok(Findings {
        ratios: vec![
            Ratio::at_most("intake_mib", intake_most, 150.0),
            Ratio::at_most("worker_mib", worker_most, 200.0),
        ],
        sections: vec![section],
    })
}
