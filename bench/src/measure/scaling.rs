//! One campaign with more intakes and more workers.

use super::{Effort, door::CONNECTIONS, persist::persisted_rate};
use crate::{
    client::ClientPlan,
    error::Result,
    program::{self, Program, cpu_seconds},
    report::{Findings, Section, rate},
    stage::Stage,
};

/// How many there are.
const COUNTS: [usize; 3] = [1, 2, 4];

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let mut section = Section::new(
        "One campaign, more processes",
        "All on the same cores, so what a further process costs is seen, and not what it would bring on cores of its own. A \
         campaign's transactions are serial by its lock: more workers help many campaigns, not one.",
        &[
            "processes",
            "claims/s at the intakes",
            "CPU µs of the intakes a claim",
            "coupons/s at the workers",
        ],
    );
    for count in COUNTS {
        let (accepted, cost) = intakes(stage, effort, count).await?;
        let persisted = workers(stage, effort, count).await?;
        section.row([count.to_string(), rate(accepted), format!("{cost:.1}"), rate(persisted)]);
    }
    Ok(Findings {
        ratios: Vec::new(),
        sections: vec![section],
    })
}

async fn intakes(stage: &Stage, effort: Effort, count: usize) -> Result<(f64, f64)> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(100_000_000).await?;
    let mut intakes: Vec<Program> = Vec::with_capacity(count);
    for _ in 0..count {
        intakes.push(program::intake(&installation.arguments, &[], &[]).await?);
    }
    let plan = ClientPlan {
        targets: intakes.iter().map(|intake| intake.address).collect(),
        campaign: campaign.to_string(),
        connections: CONNECTIONS,
        user_prefix: "scaled-".to_owned(),
        warmup: effort.warmup,
        seconds: effort.seconds,
        rate: None,
        requests: None,
    };
    let used = |intakes: &[Program]| {
        intakes
            .iter()
            .map(|intake| cpu_seconds(intake.pid()))
            .sum::<Result<f64>>()
    };
    let before = used(&intakes)?;
    let report = plan.run().await?.only(202)?;
    let cpu = used(&intakes)? - before;
    for intake in intakes {
        intake.stop().await?;
    }
    let accepted = report.rate(202);
    Ok((accepted, cpu * 1e6 / (accepted * (effort.seconds + effort.warmup))))
}

async fn workers(stage: &Stage, effort: Effort, count: usize) -> Result<f64> {
    let claims = effort.size(100_000, 30_000);
    let installation = stage.installation().await?;
    let campaign = installation.campaign(claims as i64).await?;
    installation.backlog(&campaign, claims).await?;
    let mut workers = Vec::with_capacity(count);
    for _ in 0..count {
        workers.push(program::worker(&installation.arguments).await?);
    }
    let persisted = persisted_rate(&installation.pool, &campaign, claims).await?;
    for worker in workers {
        worker.stop().await?;
    }
    Ok(persisted)
}
