//! Pods that die in the middle of a burst.

use e2e::{
    burst::Burst,
    campaign::{Campaign, SOON},
    command::CommandError,
    eventually::eventually,
    kubectl::Namespace,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::{SETTLED, kill_pod, leader, leader_of, lease, ready_pods_until};

#[tokio::test]
async fn leader_intake_and_worker_are_killed_and_everything_settles() {
    let namespace = Namespace::create("killed").await.unwrap();
    let spec = json!({
        "quantity": 2000,
        "intake": {"replicas": 2},
        "worker": {"minReplicas": 2},
    });
    let sale = Campaign::start(&namespace.name, "sale", spec).await.unwrap();
    ready_pods_until("intake", 2).await;
    ready_pods_until("worker", 2).await;

    // Whoever hears nothing of a dying intake asks again until he knows.
    let burst = Burst::start(&sale, 3000, 60, true).await.unwrap();
    sale.until(SOON, "has sold some", |status| status["taken"].as_i64() > Some(200))
        .await;
    // Not before: pods of the test before are scaled away meanwhile.
    let intakes = ready_pods_until("intake", 2).await;
    let workers = ready_pods_until("worker", 2).await;
    let operators = ready_pods_until("operator", 2).await;
    let before = leader().await;
    let leading = operators
        .iter()
        .find(|pod| before.contains(pod.as_str()))
        .expect("one of the pods leads");
    kill_pod("intake", &intakes[0]).await;
    kill_pod("worker", &workers[0]).await;
    kill_pod("operator", leading).await;
    let killed = Timestamp::now();
    // The lease tells when it was taken; we may see it later.
    let taken = eventually(SOON, "another operator leads", async || {
        let lease = lease().await?;
        let taken = lease["spec"]["acquireTime"].as_str().and_then(|time| time.parse().ok());
        let leads = leader_of(&lease).is_some_and(|leader| leader != before);
        Ok::<Option<Timestamp>, CommandError>(taken.filter(|_| leads))
    })
    .await;
    let handed_over = taken.duration_since(killed);
    assert!(
        handed_over < SignedDuration::from_secs(15),
        "handed over after {handed_over:#}"
    );

    burst.finish().await.unwrap();
    sale.settled(SETTLED, 2000).await;
    ready_pods_until("operator", 2).await;
}
