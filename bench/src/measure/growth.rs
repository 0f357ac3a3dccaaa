//! `growth`: whether a campaign with ten million users reserves as fast as one with ten thousand; and what a holder
//! costs Redis.

use std::time::{Duration, Instant};

use campaign::{identity::Instance, name::CampaignName, record::MAX_CLAIMS};

use super::{Effort, reserve::claims_of};
use crate::{
    error::{BenchError, Result},
    latency::median,
    plot::{Plot, Shape},
    report::{Findings, Ratio, Section, rate},
    stage::{Installation, Stage},
};

const FEW: usize = 10_000;
/// Calls of one sample: few enough that the small campaign stays small.
const SAMPLE_CALLS: usize = 32;
/// Calls under way while samples are taken, as of one intake.
const AT_ONCE: usize = 2;

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let installation = stage.installation().await?;
    let many = effort.size(10_000_000, 1_000_000);
    let before = used_memory(stage).await?;
    let large = installation.campaign(1_000_000_000).await?;
    let mut filler = Filler::new(&installation, &large);
    let mut line = Vec::new();
    let steps = 20;
    for step in 1..=steps {
        let target = many * step / steps;
        let (from, began) = (filler.users, Instant::now());
        filler.fill(target).await?;
        line.push((
            filler.users as f64 / 1e6,
            (filler.users - from) as f64 / began.elapsed().as_secs_f64(),
        ));
    }
    let holders = filler.users;
    let bytes = (used_memory(stage).await? - before) / holders as f64;

    let mut ratios = Vec::new();
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    let until = Instant::now() + effort.turn() * effort.turns as u32;
    while Instant::now() < until || ratios.len() < effort.turns {
        let small = installation.campaign(1_000_000_000).await?;
        let mut few = Filler::new(&installation, &small);
        few.fill(FEW).await?;
        let (small_rate, large_rate) = (few.sample().await?, filler.sample().await?);
        fast.push(small_rate);
        slow.push(large_rate);
        ratios.push(large_rate / small_rate);
    }
    let mut section = Section::new(
        "A campaign that grows",
        format!(
            "Reserve calls of 256 claims, two under way; samples of {} claims in turns ({} of each). The figure at 10,000 \
             users and at {} million are of the same minutes.",
            SAMPLE_CALLS * MAX_CLAIMS,
            ratios.len(),
            many as f64 / 1e6,
        ),
        &["users in the campaign", "claims/s (median)", "bytes a holder"],
    );
    section.row(["10,000".to_owned(), rate(median(&fast)), String::new()]);
    section.row([rate(holders as f64), rate(median(&slow)), format!("{bytes:.0}")]);
    let plot = Plot {
        title: "Claims/s while a campaign fills, by million users".to_owned(),
        shape: Shape::Lines(vec![("claims/s".to_owned(), line)]),
    };
    stage.flush().await?;
    Ok(Findings {
        ratios: vec![Ratio::at_least("growth", median(&ratios), 0.4)],
        sections: vec![section.with_plot("growth.svg", plot)],
    })
}

/// Fills one campaign.
struct Filler<'a> {
    installation: &'a Installation,
    campaign: &'a CampaignName,
    instance: Instance,
    calls: u64,
    users: usize,
}

impl<'a> Filler<'a> {
    fn new(installation: &'a Installation, campaign: &'a CampaignName) -> Self {
        Self {
            installation,
            campaign,
            instance: Instance::random(),
            calls: 0,
            users: 0,
        }
    }

    async fn fill(&mut self, users: usize) -> Result<()> {
        self.reserve(users.saturating_sub(self.users).div_ceil(MAX_CLAIMS))
            .await?;
        Ok(())
    }

    /// Claims a second over a few calls.
    async fn sample(&mut self) -> Result<f64> {
        let took = self.reserve(SAMPLE_CALLS).await?;
        Ok((SAMPLE_CALLS * MAX_CLAIMS) as f64 / took.as_secs_f64())
    }

    async fn reserve(&mut self, calls: usize) -> Result<Duration> {
        let state = &self.installation.connections.state;
        let (instance, campaign, first) = (&self.instance, self.campaign, self.calls);
        let began = Instant::now();
        let callers = (0..AT_ONCE as u64).map(|caller| async move {
            for call in (first + caller..first + calls as u64).step_by(AT_ONCE) {
                state
                    .reserve(campaign, &instance.batch(call), &claims_of(instance, call))
                    .await?;
            }
            Ok::<(), BenchError>(())
        });
        futures::future::try_join_all(callers).await?;
        self.calls += calls as u64;
        self.users += calls * MAX_CLAIMS;
        Ok(began.elapsed())
    }
}

async fn used_memory(stage: &Stage) -> Result<f64> {
    let mut connection = stage.redis.connection().await?;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
    info.lines()
        .find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok())
        .ok_or_else(|| BenchError::Invalid("Redis does not tell its memory".to_owned()))
}
