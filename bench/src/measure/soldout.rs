//! `soldout`: what everybody but the winners sees.

use super::{Effort, door};
use crate::{
    error::Result,
    program,
    report::{Findings, Ratio},
    stage::Stage,
};

const QUANTITY: usize = 10_000;

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(QUANTITY as i64).await?;
    installation.reserve(&campaign, QUANTITY).await?;
    let intake = program::intake(&installation.arguments, &[], &[]).await?;
    let turns = door::take_turns(stage, &intake, &campaign, 410, effort).await?;
    intake.stop().await?;
    Ok(Findings {
        ratios: vec![Ratio::at_least("soldout", turns.ratio(), 0.75)],
        sections: vec![turns.section(
            "Sold-out answers over HTTP",
            "256 connections, closed loop. Every claim is of a new user who is looked up in Redis before the answer: a \
             holder must hear DUPLICATE.",
        )],
    })
}
