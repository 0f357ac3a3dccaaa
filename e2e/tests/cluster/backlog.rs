//! Workers follow the backlog, and an outage is not an empty queue.

use std::{process::Command, time::Duration};

use e2e::{
    burst::{Burst, NAMESPACE},
    campaign::{Campaign, SOON},
    command::run,
    kubectl::{Namespace, kubectl},
};
use serde_json::json;

use crate::{NODE, PODS, SETTLED, replicas_until};

/// The installation's rate, set from a worker's pod as an operator of the shop would.
async fn processing_rate(rate: &str) {
    let target = "deployment/coupon-worker";
    kubectl(&[
        "-n", NAMESPACE, "exec", target, "-c", "worker", "--", "coupon", "limit", rate,
    ])
    .await
    .expect("the rate is set");
}

/// A server whose process is stopped, from the node, for as long as this lives: also a failed test leaves it running.
struct Stopped {
    pattern: &'static str,
}

impl Stopped {
    async fn now(pattern: &'static str) -> Self {
        let stopped = Self { pattern };
        run("docker", &stopped.signal("-STOP"), None)
            .await
            .expect("the server is stopped");
        stopped
    }

    fn signal(&self, signal: &'static str) -> [&'static str; 6] {
        ["exec", NODE, "pkill", signal, "-f", self.pattern]
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let continued = Command::new("docker").args(self.signal("-CONT")).output();
        if let Err(error) = continued {
            eprintln!("{} stays stopped: {error}", self.pattern);
        }
    }
}

#[tokio::test]
async fn workers_grow_with_the_backlog_stay_through_an_outage_and_go_when_it_is_done() {
    let namespace = Namespace::create("backlog").await.unwrap();
    let spec = json!({
        "quantity": 3000,
        "worker": {"minReplicas": 1, "maxReplicas": 3, "targetBacklog": 300},
    });
    let sale = Campaign::start(&namespace.name, "sale", spec).await.unwrap();
    processing_rate("20").await;
    let burst = Burst::start(&sale, 2000, 0, true).await.unwrap();
    replicas_until(SOON, "worker", |count| count == 3).await;

    // Without Redis nobody knows how much waits, and without the broker nothing of it is done.
    let away = [Stopped::now("kafka.Kafka").await, Stopped::now("redis-server").await];
    // Longer than a scale-down takes: what is not seen in this time is not done.
    let watched = tokio::time::Instant::now() + Duration::from_secs(25);
    while tokio::time::Instant::now() < watched {
        let count = replicas_until(SOON, "worker", |_| true).await;
        assert_eq!(count, 3, "what is not known is not nothing");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(away);

    processing_rate("0").await;
    burst.finish().await.unwrap();
    sale.settled(SETTLED, 2000).await;
    replicas_until(PODS, "worker", |count| count == 1).await;
}
