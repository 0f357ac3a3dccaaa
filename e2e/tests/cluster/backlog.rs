//! Workers follow the backlog, and an outage is not an empty queue.

use std::time::Duration;

use e2e::{
    burst::{Burst, NAMESPACE},
    campaign::{Campaign, SOON},
    command::run,
    kubectl::{Namespace, kubectl},
};
use serde_json::json;

use crate::{PODS, SETTLED, replicas, replicas_until};

/// The installation's rate, set from a worker's pod as an operator of the shop would.
async fn processing_rate(rate: &str) {
    let target = "deployment/coupon-worker";
    kubectl(&[
        "-n", NAMESPACE, "exec", target, "-c", "worker", "--", "coupon", "limit", rate,
    ])
    .await
    .expect("the rate is set");
}

/// Stops or continues the broker's process, from the node.
async fn broker(signal: &str) {
    run(
        "docker",
        &["exec", "coupon-e2e-control-plane", "pkill", signal, "-f", "kafka.Kafka"],
        None,
    )
    .await
    .expect("the broker gets its signal");
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
    let burst = Burst::start(&sale, 2000, 0, false).await.unwrap();
    replicas_until(SOON, "worker", |count| count == 3).await;

    broker("-STOP").await;
    // Longer than a scale-down takes: what is not seen in this time is not done.
    let watched = tokio::time::Instant::now() + Duration::from_secs(25);
    while tokio::time::Instant::now() < watched {
        assert_eq!(replicas("worker").await.unwrap(), 3, "the broker is away");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    broker("-CONT").await;

    processing_rate("0").await;
    burst.finish().await.unwrap();
    sale.settled(SETTLED, 2000).await;
    replicas_until(PODS, "worker", |count| count == 1).await;
}
