//! One of two replicas leads, and the other one follows it.

use std::time::Duration;

use operator::lease::{Election, Timing};
use serde_json::json;

use crate::api_server::ApiServer;

const LIMIT: Duration = Duration::from_secs(120);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/operator";

/// Long enough for a busy machine.
const TIMING: Timing = Timing {
    duration: Duration::from_secs(15),
    renew_limit: Duration::from_secs(12),
    interval: Duration::from_millis(50),
};

fn candidate(server: &ApiServer, me: &str) -> Election {
    candidate_with(server, me, TIMING)
}

fn candidate_with(server: &ApiServer, me: &str, timing: Timing) -> Election {
    Election::new(server.client(), "default", "operator", me, timing)
}

fn holder(server: &ApiServer) -> serde_json::Value {
    server
        .get(LEASE)
        .map_or(json!(null), |lease| lease["spec"]["holderIdentity"].clone())
}

#[tokio::test]
async fn one_leads_and_a_killed_one_is_followed() {
    let server = ApiServer::new();
    let first = candidate(&server, "first");
    let won = first.win(|| ()).await;
    assert_eq!(holder(&server), "first");
    let leader = tokio::spawn(async move { first.keep(won, || ()).await });

    let second = candidate(&server, "second");
    let followed = tokio::time::timeout(TIMING.duration * 2, second.win(|| ())).await;
    assert!(followed.is_err(), "two lead");
    leader.abort();
    tokio::time::timeout(LIMIT, second.win(|| ()))
        .await
        .expect("the second one follows");
    assert_eq!(holder(&server), "second");
}

#[tokio::test]
async fn who_resigns_is_followed_at_once() {
    let server = ApiServer::new();
    // A resignation may take an interval.
    let timing = Timing {
        interval: Duration::from_secs(2),
        ..TIMING
    };
    let first = candidate_with(&server, "first", timing);
    first.win(|| ()).await;
    first.resign().await;
    assert_eq!(holder(&server), "");
    candidate_with(&server, "second", timing).win(|| ()).await;
    assert_eq!(holder(&server), "second");
    // Who is not the holder any more takes nothing away.
    first.resign().await;
    assert_eq!(holder(&server), "second");
}

#[tokio::test]
async fn a_leader_that_cannot_renew_stops_leading() {
    let server = ApiServer::new();
    let leader = candidate(&server, "first");
    let won = leader.win(|| ()).await;
    server.set_down(true);
    tokio::time::timeout(LIMIT, leader.keep(won, || ()))
        .await
        .expect("it stops leading");
}

#[tokio::test]
async fn a_leader_that_was_overtaken_stops_leading() {
    let server = ApiServer::new();
    let leader = candidate(&server, "first");
    let won = leader.win(|| ()).await;
    let keeping = tokio::spawn(async move { leader.keep(won, || ()).await });
    let mut lease = server.get(LEASE).unwrap();
    lease["spec"]["holderIdentity"] = json!("second");
    lease["spec"]["renewTime"] = json!("2026-11-27T11:00:00.000000Z");
    server.put("/apis/coordination.k8s.io/v1/namespaces/default/leases", lease);
    tokio::time::timeout(LIMIT, keeping).await.expect("it notices").unwrap();
    assert_eq!(holder(&server), "second");
}
