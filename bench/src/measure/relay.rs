//! `relay`: whether events keep up with coupons while worker, relay and projection share the machine.

use std::time::{Duration, Instant};

use super::{Effort, persist::issued};
use crate::{
    error::{BenchError, Result},
    latency::median,
    plot::{Plot, Shape},
    program,
    report::{Findings, Ratio, Section, rate},
    stage::Stage,
};

const POLL: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(180);

/// What was there at one moment.
#[derive(Clone, Copy)]
struct Look {
    seconds: f64,
    coupons: f64,
    events: f64,
    outbox: i64,
}

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let claims = effort.size(200_000, 60_000);
    let (mut ratios, mut rates, mut most_waiting) = (Vec::new(), Vec::new(), 0);
    let mut looks = Vec::new();
    for turn in 0..effort.turns.min(3) {
        looks = drain(stage, claims).await?;
        // From the first tenth on: the first page of events waits for the first transaction.
        let share = |look: &&Look, share: f64| look.coupons >= claims as f64 * share;
        let (Some(from), Some(to)) = (
            looks.iter().find(|look| share(look, 0.1)),
            looks.iter().find(|look| share(look, 1.0)),
        ) else {
            return Err(BenchError::Invalid("the backlog was not watched".to_owned()));
        };
        let coupons = (to.coupons - from.coupons) / (to.seconds - from.seconds);
        let events = (to.events - from.events) / (to.seconds - from.seconds);
        eprintln!("  turn {turn}: {} coupons/s, {} events/s", rate(coupons), rate(events));
        ratios.push(events / coupons);
        rates.push((coupons, events));
        most_waiting = looks
            .iter()
            .map(|look| look.outbox)
            .max()
            .unwrap_or_default()
            .max(most_waiting);
    }
    let mut section = Section::new(
        "Relay and projection beside the worker",
        format!(
            "A backlog of {} claims; persist, relay and projection run in one worker until the last coupon is there. An \
             event counts when its row is in `coupon_activity`.",
            rate(claims as f64)
        ),
        &["coupons/s", "events/s", "most rows in the outbox"],
    );
    let column = |pick: fn(&(f64, f64)) -> f64| rate(median(&rates.iter().map(pick).collect::<Vec<_>>()));
    section.row([
        column(|rates| rates.0),
        column(|rates| rates.1),
        rate(most_waiting as f64),
    ]);
    let line = |name: &str, pick: fn(&Look) -> f64| {
        (
            name.to_owned(),
            looks.iter().map(|look| (look.seconds, pick(look))).collect(),
        )
    };
    let plot = Plot {
        title: "Coupons and events after a worker starts on a backlog, by seconds".to_owned(),
        shape: Shape::Lines(vec![
            line("coupons", |look| look.coupons),
            line("events", |look| look.events),
            line("outbox", |look| look.outbox as f64),
        ]),
    };
    Ok(Findings {
        ratios: vec![Ratio::at_least("relay", median(&ratios), 1.0)],
        sections: vec![section.with_plot("relay.svg", plot)],
    })
}

async fn drain(stage: &Stage, claims: usize) -> Result<Vec<Look>> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(claims as i64).await?;
    installation.backlog(&campaign, claims).await?;
    let worker = program::worker(&installation.arguments).await?;
    let began = Instant::now();
    let mut looks: Vec<Look> = Vec::new();
    loop {
        let outbox = sqlx::query_scalar("SELECT count(*) FROM outbox")
            .fetch_one(&installation.pool)
            .await?;
        looks.push(Look {
            seconds: began.elapsed().as_secs_f64(),
            coupons: issued(&installation.pool, &campaign).await? as f64,
            events: worker.metric("coupon_worker_events_projected_total").await?,
            outbox,
        });
        let last = looks[looks.len() - 1];
        if last.events >= claims as f64 {
            break;
        }
        if began.elapsed() > LIMIT {
            return Err(BenchError::Invalid(format!(
                "{} of {claims} events after {LIMIT:?}",
                last.events
            )));
        }
        tokio::time::sleep(POLL).await;
    }
    worker.stop().await?;
    Ok(looks)
}
