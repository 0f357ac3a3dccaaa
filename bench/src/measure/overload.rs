//! `overload`: three times more claims than the door can take. It must answer as many as before, and those that it
//! accepts must not wait for ever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use super::{Effort, door::CONNECTIONS};
use crate::{
    client::ClientPlan,
    error::{BenchError, Result},
    latency::median,
    program::{self, Program},
    report::{Findings, Ratio, Section, rate},
    stage::Stage,
};

/// The intake runs for this part of every period and is stopped for the rest: the client needs the machine.
const RUNS: Duration = Duration::from_millis(3);
const PERIOD: Duration = Duration::from_millis(15);
/// More than the client has connections when it is paced, or nothing would ever be refused.
const CLIENTS: usize = 3_000;
const MAX_IN_FLIGHT: &str = "1000";

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(100_000_000).await?;
    let intake = program::intake(
        &installation.arguments,
        &["--max-in-flight-per-campaign", MAX_IN_FLIGHT],
        &[("TOKIO_WORKER_THREADS", "1")],
    )
    .await?;
    let throttle = Throttle::start(&intake)?;
    let (mut ratios, mut rows) = (Vec::new(), Vec::new());
    for turn in 0..effort.turns.min(3) {
        let plan = ClientPlan {
            targets: vec![intake.address],
            campaign: campaign.to_string(),
            connections: CONNECTIONS,
            user_prefix: format!("most{turn}-"),
            warmup: effort.warmup,
            seconds: effort.seconds,
            rate: None,
            requests: None,
        };
        let most = plan.run().await?.only(202)?;
        let paced = ClientPlan {
            connections: CLIENTS,
            user_prefix: format!("over{turn}-"),
            rate: Some(most.total_rate() * 3.0),
            ..plan
        };
        let over = paced.run().await?;
        let ratio = over.total_rate() / most.total_rate();
        eprintln!(
            "  turn {turn}: highest {}/s, at three times as many {} answers/s, {} accepted/s, p99 {:.0} ms",
            rate(most.total_rate()),
            rate(over.total_rate()),
            rate(over.rate(202)),
            over.accepted.p99
        );
        ratios.push(ratio);
        rows.push([
            rate(most.total_rate()),
            rate(most.total_rate() * 3.0),
            rate(over.total_rate()),
            rate(over.rate(202)),
            format!("{:.0} ms", over.accepted.p99),
        ]);
    }
    throttle.stop();
    intake.stop().await?;
    let mut section = Section::new(
        "Overload",
        format!(
            "The intake has a fifth of a core (stopped for {} of every {} ms) and takes {MAX_IN_FLIGHT} claims of a campaign \
             at once; {CLIENTS} connections, open loop. Latencies are from when a claim should have been sent.",
            (PERIOD - RUNS).as_millis(),
            PERIOD.as_millis(),
        ),
        &[
            "highest rate",
            "offered",
            "answers/s",
            "accepted/s",
            "p99 of the accepted",
        ],
    );
    section.rows.extend(rows.into_iter().map(|row| row.to_vec()));
    Ok(Findings {
        ratios: vec![Ratio::at_least("overload", median(&ratios), 0.9)],
        sections: vec![section],
    })
}

/// Gives a process a share of the machine.
struct Throttle {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Throttle {
    fn start(program: &Program) -> Result<Self> {
        let pid = i32::try_from(program.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| BenchError::Invalid("the intake has no process id".to_owned()))?;
        let ends = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let ends = ends.clone();
            move || {
                while !ends.load(Ordering::Relaxed) {
                    let stopped = kill_process(pid, Signal::STOP).is_ok();
                    std::thread::sleep(PERIOD - RUNS);
                    let runs = kill_process(pid, Signal::CONT).is_ok();
                    if !stopped || !runs {
                        return;
                    }
                    std::thread::sleep(RUNS);
                }
            }
        });
        Ok(Self {
            ends,
            thread: Some(thread),
        })
    }

    fn stop(self) {}
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
