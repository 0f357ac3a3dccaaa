//! `accept`: claims that get a slot and are stored in Kafka, against a route that only parses them.

use super::{Effort, door};
use crate::{
    error::Result,
    latency::median,
    program,
    report::{Findings, Ratio},
    stage::Stage,
};

/// Measures; with it the highest rate of accepted claims.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<(Findings, f64)> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(100_000_000).await?;
    let intake = program::intake(&installation.arguments, &[], &[]).await?;
    let turns = door::take_turns(stage, &intake, &campaign, 202, effort).await?;
    intake.stop().await?;
    let section = turns.section(
        "Accepted claims over HTTP",
        "256 connections, closed loop. Every claim is of a new user, gets its slot and is acknowledged by Kafka \
         (`acks=all`) before its answer.",
    );
    let findings = Findings {
        ratios: vec![Ratio::at_least("accept", turns.ratio(), 0.55)],
        sections: vec![section],
    };
    Ok((findings, median(&turns.ours)))
}
