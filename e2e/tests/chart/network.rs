//! Who reaches what. A NetworkPolicy is only as good as the plugin that enforces it; here it is what it says.

use e2e::chart::{Rendered, render};
use serde_json::{Value, json};

use crate::{DEV, PRODUCTION};

fn policy<'a>(rendered: &'a Rendered, component: &str) -> &'a Value {
    &rendered
        .find("NetworkPolicy", &format!("coupon-{component}"))
        .expect("a policy")["spec"]
}

#[tokio::test]
async fn only_the_public_port_has_a_service() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    let services = rendered.of_kind("Service");
    assert_eq!(services.len(), 1);
    assert_eq!(services[0]["spec"]["type"], "LoadBalancer");
    assert_eq!(
        services[0]["spec"]["ports"],
        json!([{"name": "http", "port": 443, "targetPort": "public"}])
    );
}

#[tokio::test]
async fn by_default_everybody_may_claim_and_nobody_reaches_an_internal_port() {
    let rendered = render(DEV, &[]).await.unwrap();
    let intake = policy(&rendered, "intake");
    assert_eq!(intake["policyTypes"], json!(["Ingress"]));
    assert_eq!(intake["ingress"], json!([{"ports": [{"port": "public"}]}]));
    for component in ["operator", "worker", "migrate"] {
        assert_eq!(policy(&rendered, component)["ingress"], Value::Null, "{component}");
    }
}

#[tokio::test]
async fn internal_ports_open_for_those_who_are_named() {
    let rendered = render(
        PRODUCTION,
        &["networkPolicy.publicFrom=[{\"podSelector\":{\"matchLabels\":{\"app\":\"gateway\"}}}]"],
    )
    .await
    .unwrap();
    let monitoring = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    let internal = json!({"ports": [{"port": "internal"}], "from": monitoring});
    assert_eq!(
        policy(&rendered, "intake")["ingress"],
        json!([
            {"ports": [{"port": "public"}], "from": [
                {"podSelector": {"matchLabels": {"app": "gateway"}}},
                // Rehearsals claim from there.
                {"podSelector": policy(&rendered, "toolbox")["podSelector"]}
            ]},
            internal
        ])
    );
    for component in ["operator", "worker"] {
        assert_eq!(
            policy(&rendered, component)["ingress"],
            json!([internal]),
            "{component}"
        );
    }
}

#[tokio::test]
async fn egress_is_closed_but_for_names_and_servers_and_the_api_server_for_the_operator() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    for (component, rules) in [
        ("operator", 3),
        ("intake", 2),
        ("worker", 2),
        ("migrate", 2),
        ("toolbox", 3),
    ] {
        let policy = policy(&rendered, component);
        assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]), "{component}");
        assert_eq!(policy["egress"].as_array().unwrap().len(), rules, "{component}");
    }
    let to_api = json!({"ports": [{"port": 443}, {"port": 6443}]});
    assert!(
        policy(&rendered, "operator")["egress"]
            .as_array()
            .unwrap()
            .contains(&to_api)
    );
    assert!(
        !policy(&rendered, "intake")["egress"]
            .as_array()
            .unwrap()
            .contains(&to_api)
    );
}

#[tokio::test]
async fn monitors_are_there_when_they_are_wanted() {
    assert!(render(DEV, &[]).await.unwrap().of_kind("PodMonitor").is_empty());
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    for component in ["operator", "intake", "worker"] {
        let monitor = rendered
            .find("PodMonitor", &format!("coupon-{component}"))
            .expect("a monitor");
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], "internal");
    }
}
