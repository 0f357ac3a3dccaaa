//! `p99`: what the door adds to the slowest of its accepted claims, at half of the highest rate, against nothing but one
//! EVALSHA and one acknowledged record a claim.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use campaign::{
    identity::{Instance, RequestId},
    kafka::producer::{Delivery, Outgoing, Producer},
    settings::KafkaSettings,
};
use clap::Args;
use tokio::task::LocalSet;

use super::{Effort, door::CONNECTIONS};
use crate::{
    article::ArticleScript,
    client::ClientPlan,
    error::{BenchError, Result},
    latency::{Latencies, Samples, median},
    program,
    report::{Findings, Ratio, Section, rate},
    stage::Stage,
};

/// What the bare path is to do; flags of the child.
#[derive(Clone, Debug, Args)]
pub struct BarePath {
    /// Where Redis is.
    #[arg(long)]
    redis_url: String,
    /// Where Kafka is.
    #[arg(long)]
    kafka_brokers: String,
    /// The topic.
    #[arg(long)]
    topic: String,
    /// Claims a second.
    #[arg(long)]
    rate: f64,
    /// Seconds that do not count.
    #[arg(long)]
    warmup: f64,
    /// Seconds that count.
    #[arg(long)]
    seconds: f64,
}

/// Measures at half of `highest` accepted claims a second.
pub async fn measure(stage: &Stage, effort: Effort, highest: f64) -> Result<Findings> {
    let installation = stage.installation().await?;
    let campaign = installation.campaign(100_000_000).await?;
    let intake = program::intake(&installation.arguments, &[], &[]).await?;
    let half = highest / 2.0;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for turn in 0..effort.turns {
        let path = BarePath {
            redis_url: stage.redis.url(),
            kafka_brokers: stage.kafka.brokers(),
            topic: installation.naming.requests_topic(),
            rate: half,
            warmup: effort.warmup,
            seconds: effort.seconds,
        };
        let bare_latencies = path.in_child().await?;
        let plan = ClientPlan {
            targets: vec![intake.address],
            campaign: campaign.to_string(),
            connections: CONNECTIONS,
            user_prefix: format!("paced{turn}-"),
            warmup: effort.warmup,
            seconds: effort.seconds,
            rate: Some(half),
            requests: None,
        };
        let report = plan.run().await?.only(202)?;
        eprintln!(
            "  turn {turn}: door p50 {:.1} p99 {:.1} ms at {}/s, bare p50 {:.1} p99 {:.1} ms",
            report.accepted.p50,
            report.accepted.p99,
            rate(report.total_rate()),
            bare_latencies.p50,
            bare_latencies.p99
        );
        ours.push(report.accepted);
        bare.push(bare_latencies);
    }
    intake.stop().await?;
    let ratios: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours.p99 / bare.p99).collect();
    let mut section = Section::new(
        "Latency at half of the highest rate",
        format!(
            "{} claims/s, open loop, measured from when a claim should have been sent. The bare path has no HTTP.",
            rate(half)
        ),
        &["", "p50 (median)", "p99 (median)"],
    );
    for (name, side) in [("the door", &ours), ("EVALSHA, produce, acknowledgement", &bare)] {
        let of = |pick: fn(&Latencies) -> f64| format!("{:.1} ms", median(&side.iter().map(pick).collect::<Vec<_>>()));
        section.row([name.to_owned(), of(|l| l.p50), of(|l| l.p99)]);
    }
    Ok(Findings {
        ratios: vec![Ratio::at_most("p99", median(&ratios), 2.0)],
        sections: vec![section],
    })
}

impl BarePath {
    async fn in_child(&self) -> Result<Latencies> {
        let flags = [
            ("--redis-url", self.redis_url.clone()),
            ("--kafka-brokers", self.kafka_brokers.clone()),
            ("--topic", self.topic.clone()),
            ("--rate", self.rate.to_string()),
            ("--warmup", self.warmup.to_string()),
            ("--seconds", self.seconds.to_string()),
        ];
        let output = tokio::process::Command::new(program::own_program()?)
            .arg("bare-path")
            .args(flags.iter().flat_map(|(flag, value)| [*flag, value.as_str()]))
            .kill_on_drop(true)
            .stderr(std::process::Stdio::inherit())
            .output()
            .await
            .map_err(BenchError::io("run the bare path"))?;
        serde_json::from_slice(&output.stdout).map_err(|source| BenchError::Report {
            what: "the bare path",
            source,
        })
    }
}

/// The child: one EVALSHA and one record a claim, paced.
pub async fn run(path: BarePath) -> Result<Latencies> {
    let client = redis::Client::open(path.redis_url.as_str())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let instance = Instance::random().to_string();
    let script = ArticleScript::load(&mut connection, &instance).await?;
    let producer = Producer::start(
        &KafkaSettings {
            kafka_brokers: path.kafka_brokers.clone(),
            kafka_properties: Vec::new(),
        },
        Duration::from_secs(5),
    )?;
    let lost = Rc::new(RefCell::new(0_u64));
    let samples = Rc::new(RefCell::new(Samples::default()));
    let counts_from = Instant::now() + Duration::from_secs_f64(path.warmup);
    let counts_to = counts_from + Duration::from_secs_f64(path.seconds);
    let local = LocalSet::new();
    // As many sources as the door's client has connections, each with its share of the rate.
    for source in 0..CONNECTIONS {
        let (mut connection, script, producer, path) =
            (connection.clone(), script.clone(), producer.clone(), path.clone());
        let (samples, lost, instance) = (samples.clone(), lost.clone(), instance.clone());
        local.spawn_local(async move {
            let period = CONNECTIONS as f64 / path.rate;
            let began = Instant::now();
            for claim in 0.. {
                let due = began + Duration::from_secs_f64(period * (claim as f64 + source as f64 / CONNECTIONS as f64));
                if due >= counts_to {
                    return;
                }
                tokio::time::sleep_until(due.into()).await;
                let user = format!("{instance}-{source}-{claim}");
                let answer = script
                    .call(&user, i64::MAX / 2)
                    .query_async::<i64>(&mut connection)
                    .await;
                let value = format!(r#"{{"userId":"{user}","requestId":"{}"}}"#, RequestId::fresh());
                let delivery = producer.send(&Outgoing {
                    topic: &path.topic,
                    value: value.as_bytes(),
                    ..Outgoing::default()
                });
                let stored = matches!(delivery.await, Ok(Delivery::Acknowledged { .. }));
                if !stored || !matches!(answer, Ok(0)) {
                    *lost.borrow_mut() += 1;
                } else if Instant::now() >= counts_from {
                    samples.borrow_mut().add(due.elapsed());
                }
            }
        });
    }
    local.await;
    if *lost.borrow() > 0 {
        return Err(BenchError::Invalid(format!(
            "{} claims of the bare path were lost",
            lost.borrow()
        )));
    }
    Ok(samples.take().summary())
}
