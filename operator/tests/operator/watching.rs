//! A whole operator: it is elected, watches, reconciles, scales, and serves its port.

use std::time::Duration;

use operator::{
    servers::Connected,
    startup::{self, RunningOperator},
};
use serde_json::json;
use testkit::{eventually::eventually, installation::TestInstallation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::{
    api_server::{ApiServer, CAMPAIGNS},
    campaigns::settings,
};

const LIMIT: Duration = Duration::from_secs(60);

async fn get(operator: &RunningOperator, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(operator.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: operator\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn it_leads_reconciles_scales_and_hands_over() {
    let installation = TestInstallation::start().await.unwrap();
    let api = ApiServer::new();
    for name in ["intake", "worker"] {
        api.put(
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"metadata": {"name": name}, "spec": {"replicas": 1}}),
        );
    }
    // One that cannot be read must not stop the others.
    api.apply_campaign("broken", json!({"quantity": "many"}), json!({}));
    api.apply_campaign("first", json!({"quantity": 10, "intake": {"replicas": 3}}), json!({}));

    let settings = settings(
        &installation,
        &[
            "--intake-deployment=intake",
            "--worker-deployment=worker",
            "--watch-namespace=default",
        ],
    );
    let start = async |stop: &CancellationToken| {
        let servers = Connected::in_background(settings.clone());
        startup::start_on(api.client(), servers, settings.clone(), stop.clone())
            .await
            .unwrap()
    };
    let stop = CancellationToken::new();
    let leader = start(&stop).await;
    let ready = async |name: &str| {
        eventually(LIMIT, format!("{name} is ready"), async || {
            api.condition(name, "Ready").is_some_and(|(status, _)| status == "True")
        })
        .await;
    };
    ready("first").await;
    api.apply_campaign("second", json!({"quantity": 10, "intake": {"replicas": 2}}), json!({}));
    ready("second").await;
    eventually(LIMIT, "the intake has the sum", async || {
        api.get("/apis/apps/v1/namespaces/default/deployments/intake").unwrap()["spec"]["replicas"] == 5
    })
    .await;
    assert!(get(&leader, "/livez").await.starts_with("HTTP/1.0 200"));
    assert!(get(&leader, "/readyz").await.starts_with("HTTP/1.0 200"));
    let metrics = get(&leader, "/metrics").await;
    for line in [
        "coupon_operator_leader 1",
        "coupon_operator_rebuilds_total{reason=\"Created\"} 2",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }

    // The other one serves its port and waits.
    let other_stop = CancellationToken::new();
    let other = start(&other_stop).await;
    eventually(LIMIT, "the other one is ready", async || {
        get(&other, "/readyz").await.starts_with("HTTP/1.0 200")
    })
    .await;
    assert!(get(&other, "/metrics").await.contains("coupon_operator_leader 0"));

    stop.cancel();
    leader.wait().await;
    api.delete(&format!("{CAMPAIGNS}/first"));
    eventually(LIMIT, "the other one has drained it", async || {
        api.campaign("first").is_none()
    })
    .await;
    assert!(get(&other, "/metrics").await.contains("coupon_operator_leader 1"));
    other_stop.cancel();
    other.wait().await;
}
