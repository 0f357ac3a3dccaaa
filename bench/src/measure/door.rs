//! The door and the bare route, asked in turns by the same client.

use campaign::name::CampaignName;

use super::Effort;
use crate::{
    client::{ClientPlan, ClientReport},
    error::Result,
    latency::median,
    program::{self, Program, cpu_seconds},
    report::{Section, rate},
    stage::Stage,
};

/// Connections of the closed-loop client.
pub const CONNECTIONS: usize = 256;

/// Both sides, and the turns they had.
pub struct Turns {
    /// Answers a second of the door, turn by turn.
    pub ours: Vec<f64>,
    /// Of the bare route.
    pub bare: Vec<f64>,
    /// What the door's answers took in the last turn.
    pub report: ClientReport,
    /// CPU microseconds of an answer, by process: the door's turns.
    pub cost: Vec<(&'static str, f64)>,
    /// The same for the bare route.
    pub bare_cost: Vec<(&'static str, f64)>,
}

impl Turns {
    /// The median of the turns' ratios.
    pub fn ratio(&self) -> f64 {
        let ratios: Vec<f64> = self
            .ours
            .iter()
            .zip(&self.bare)
            .map(|(ours, bare)| ours / bare)
            .collect();
        median(&ratios)
    }

    /// The table of these turns.
    pub fn section(&self, title: &str, text: &str) -> Section {
        let mut section = Section::new(
            title,
            text,
            &["", "answers/s (median)", "p50", "p99", "CPU µs an answer"],
        );
        let told = |cost: &[(&str, f64)]| {
            let parts: Vec<String> = cost
                .iter()
                .map(|(name, micros)| format!("{name} {micros:.1}"))
                .collect();
            parts.join(", ")
        };
        let latencies = if self.report.accepted.count > 0 {
            self.report.accepted
        } else {
            self.report.refused
        };
        section.row([
            "the door".to_owned(),
            rate(median(&self.ours)),
            format!("{:.1} ms", latencies.p50),
            format!("{:.1} ms", latencies.p99),
            told(&self.cost),
        ]);
        section.row([
            "bare route".to_owned(),
            rate(median(&self.bare)),
            String::new(),
            String::new(),
            told(&self.bare_cost),
        ]);
        section
    }
}

/// Takes turns. `status` is what every answer of the door has to be.
pub async fn take_turns(
    stage: &Stage,
    intake: &Program,
    campaign: &CampaignName,
    status: u16,
    effort: Effort,
) -> Result<Turns> {
    let bare = program::bare_route().await?;
    let plan = |program: &Program, turn: usize, side: &str| ClientPlan {
        targets: vec![program.address],
        campaign: campaign.to_string(),
        connections: CONNECTIONS,
        user_prefix: format!("{side}{turn}-"),
        warmup: effort.warmup,
        seconds: effort.seconds,
        rate: None,
        requests: None,
    };
    let mut beside = stage.processes();
    beside.push(("intake", intake.pid()));
    let mut turns = None::<Turns>;
    for turn in 0..effort.turns {
        let (bare_report, bare_cost) = costed(plan(&bare, turn, "bare"), &[("route", bare.pid())]).await?;
        let (report, cost) = costed(plan(intake, turn, "user"), &beside).await?;
        let (report, bare_report) = (report.only(status)?, bare_report.only(202)?);
        eprintln!(
            "  turn {turn}: door {}/s, bare route {}/s",
            rate(report.total_rate()),
            rate(bare_report.total_rate())
        );
        let turns = turns.get_or_insert_with(|| Turns {
            ours: Vec::new(),
            bare: Vec::new(),
            report: report.clone(),
            cost: Vec::new(),
            bare_cost: Vec::new(),
        });
        turns.ours.push(report.total_rate());
        turns.bare.push(bare_report.total_rate());
        (turns.report, turns.cost, turns.bare_cost) = (report, cost, bare_cost);
    }
    turns.ok_or_else(|| crate::error::BenchError::Invalid("no turn was taken".to_owned()))
}

/// Runs a client; with it, the CPU microseconds that each process and the client used for one answer. The warm-up is
/// part of both sums only in time, so the answers of the warm-up are estimated by its share.
async fn costed(
    plan: ClientPlan,
    processes: &[(&'static str, u32)],
) -> Result<(ClientReport, Vec<(&'static str, f64)>)> {
    let before = processes
        .iter()
        .map(|&(_, pid)| cpu_seconds(pid))
        .collect::<Result<Vec<f64>>>()?;
    let report = plan.run().await?;
    let answers = report.total_rate() * (plan.warmup + plan.seconds);
    let mut cost = Vec::with_capacity(processes.len() + 1);
    for (&(name, pid), before) in processes.iter().zip(before) {
        cost.push((name, (cpu_seconds(pid)? - before) * 1e6 / answers));
    }
    cost.push(("client", report.cpu_seconds * 1e6 / answers));
    Ok((report, cost))
}
