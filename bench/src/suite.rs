//! All measurements in their order.

use std::{path::PathBuf, time::Instant};

use clap::Args;

use crate::{
    error::{BenchError, Result},
    measure::{
        Effort, accept, alternatives, chain, growth, memory, overload, p99, persist, rebuild, relay, reserve, scaling,
        soldout,
    },
    report::Findings,
    stage::Stage,
};

/// What to measure.
#[derive(Clone, Debug, Args)]
pub struct SuiteSettings {
    /// A few minutes instead of twenty: short turns, a tenth of the sizes.
    #[arg(long)]
    pub quick: bool,
    /// Only these.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Writes the figures into this page and the plots beside it.
    #[arg(long)]
    pub page: Option<PathBuf>,
}

/// Names of the measurements, in their order.
pub const NAMES: [&str; 13] = [
    "accept",
    "soldout",
    "p99",
    "overload",
    "reserve",
    "growth",
    "persist",
    "relay",
    "alternatives",
    "chain",
    "rebuild",
    "memory",
    "scaling",
];

/// Runs them; a measurement that fails is told and does not stop the others.
pub async fn run(settings: SuiteSettings) -> Result<bool> {
    let effort = if settings.quick {
        Effort::quick()
    } else {
        Effort::full()
    };
    if let Some(unknown) = settings.only.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(BenchError::Invalid(format!(
            "there is no measurement {unknown}; there are {}",
            NAMES.join(", ")
        )));
    }
    let wanted = |name: &str| settings.only.is_empty() || settings.only.iter().any(|only| only == name);
    eprintln!("launching Redis, Kafka and Postgres");
    let stage = Stage::start().await?;
    let began = Instant::now();
    let mut findings = Findings::default();
    let mut failed = Vec::new();
    let mut highest = None;
    for name in NAMES.into_iter().filter(|name| wanted(name)) {
        eprintln!("{name} ({:.0} s)", began.elapsed().as_secs_f64());
        let found = match name {
            "accept" => accept::measure(&stage, effort).await.map(|(found, rate)| {
                highest = Some(rate);
                found
            }),
            "soldout" => soldout::measure(&stage, effort).await,
            "p99" => at_half(&stage, effort, highest).await,
            "overload" => overload::measure(&stage, effort).await,
            "reserve" => reserve::measure(&stage, effort).await,
            "growth" => growth::measure(&stage, effort).await,
            "persist" => persist::measure(&stage, effort).await,
            "relay" => relay::measure(&stage, effort).await,
            "alternatives" => alternatives::measure(&stage, effort).await,
            "chain" => chain::measure(&stage, effort).await,
            "rebuild" => rebuild::measure(&stage, effort).await,
            "memory" => memory::measure(&stage, effort).await,
            _ => scaling::measure(&stage, effort).await,
        };
        match found {
            Ok(found) => {
                found.print();
                findings.extend(found);
            }
            Err(error) => {
                eprintln!("{name} failed: {error}");
                failed.push(name);
            }
        }
    }
    if let Some(page) = &settings.page {
        findings.write(page, &about(effort, began))?;
    }
    println!();
    for ratio in &findings.ratios {
        println!("{}", ratio.line());
    }
    for name in &failed {
        println!("ratio {name} failed");
    }
    Ok(failed.is_empty())
}

/// `p99` needs the highest rate; without `accept` before it, that is looked for first.
async fn at_half(stage: &Stage, effort: Effort, highest: Option<f64>) -> Result<Findings> {
    let highest = match highest {
        Some(highest) => highest,
        None => accept::measure(stage, Effort::quick()).await?.1,
    };
    p99::measure(stage, effort, highest).await
}

fn about(effort: Effort, began: Instant) -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "Measured on {}, {cores} cores, everything (client, servers, system) beside each other on them, in {:.0} minutes{}.",
        jiff::Zoned::now().date(),
        began.elapsed().as_secs_f64() / 60.0,
        if effort.quick {
            " (a quick run: short turns and a tenth of the sizes)"
        } else {
            ""
        },
    )
}
