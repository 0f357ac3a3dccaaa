//! Every pod is restricted, and ends in order.

use e2e::chart::{Rendered, render, variable};
use serde_json::{Value, json};

use crate::{DEV, PRODUCTION};

fn containers(pod: &Value) -> Vec<&Value> {
    ["initContainers", "containers"]
        .iter()
        .filter_map(|list| pod[list].as_array())
        .flatten()
        .collect()
}

fn deployment<'a>(rendered: &'a Rendered, component: &str) -> &'a Value {
    rendered
        .find("Deployment", &format!("coupon-{component}"))
        .expect("the Deployment")
}

#[tokio::test]
async fn every_pod_passes_the_restricted_standard() {
    for values in [DEV, PRODUCTION] {
        let rendered = render(values, &[]).await.unwrap();
        let pods = rendered.pods();
        assert!(pods.len() >= 5, "{values}: {}", pods.len());
        for (name, pod) in pods {
            let security = &pod["securityContext"];
            assert_eq!(security["runAsNonRoot"], true, "{name}");
            assert!(security["runAsUser"].as_i64().unwrap() > 0, "{name}");
            assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            for container in containers(pod) {
                let security = &container["securityContext"];
                assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(security["capabilities"]["drop"], json!(["ALL"]), "{name}");
                assert!(container["resources"]["requests"].is_object(), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn only_the_operator_and_its_uninstall_have_a_token() {
    for (name, pod) in render(PRODUCTION, &[]).await.unwrap().pods() {
        let speaks_to_the_api_server = ["coupon-operator", "coupon-uninstall"].contains(&name);
        assert_eq!(pod["automountServiceAccountToken"], speaks_to_the_api_server, "{name}");
    }
}

#[tokio::test]
async fn replicas_are_left_to_the_operator() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    for component in ["intake", "worker"] {
        assert!(
            deployment(&rendered, component)["spec"].get("replicas").is_none(),
            "{component}"
        );
    }
    assert_eq!(deployment(&rendered, "operator")["spec"]["replicas"], 2);
}

#[tokio::test]
async fn the_grace_period_covers_drain_and_publish_timeout() {
    for sets in [
        &[][..],
        &["installation.publishTimeoutSeconds=30", "intake.preStopSeconds=40"],
    ] {
        let rendered = render(PRODUCTION, sets).await.unwrap();
        let pod = &deployment(&rendered, "intake")["spec"]["template"]["spec"];
        let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
        let drain = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
            .as_i64()
            .unwrap();
        let publish: i64 = variable(&pod["containers"][0], "COUPON_PUBLISH_TIMEOUT")
            .and_then(|value| value.trim_end_matches('s').parse().ok())
            .unwrap();
        assert!(
            grace >= drain + publish + 10,
            "{sets:?}: {grace} for {drain} and {publish}"
        );
    }
    let rendered = render(PRODUCTION, &["worker.shutdownGraceSeconds=100"]).await.unwrap();
    let pod = &deployment(&rendered, "worker")["spec"]["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_i64().unwrap() >= 110);
}

#[tokio::test]
async fn each_process_is_probed_on_its_internal_port_and_waits_for_the_schema() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    for component in ["operator", "intake", "worker"] {
        let pod = &deployment(&rendered, component)["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        for (probe, path) in [
            ("startupProbe", "/livez"),
            ("livenessProbe", "/livez"),
            ("readinessProbe", "/readyz"),
        ] {
            let get = &container[probe]["httpGet"];
            assert_eq!(
                (&get["path"], &get["port"]),
                (&json!(path), &json!("internal")),
                "{component} {probe}"
            );
        }
        assert_eq!(pod["initContainers"][0]["name"], "wait-for-schema", "{component}");
        assert_eq!(pod["topologySpreadConstraints"][0]["maxSkew"], 1, "{component}");
        let budget = rendered
            .find("PodDisruptionBudget", &format!("coupon-{component}"))
            .expect("a budget");
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
        let selector = &deployment(&rendered, component)["spec"]["selector"];
        assert_eq!(&budget["spec"]["selector"], selector, "{component}");
    }
}

#[tokio::test]
async fn the_toolbox_has_the_servers_of_the_release_and_room_for_a_list() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    let pod = &deployment(&rendered, "toolbox")["spec"]["template"]["spec"];
    let toolbox = &pod["containers"][0];
    let worker = &deployment(&rendered, "worker")["spec"]["template"]["spec"]["containers"][0];
    for name in [
        "COUPON_KEY_PREFIX",
        "COUPON_NAMESPACE",
        "COUPON_REDIS_URLS",
        "COUPON_KAFKA_PROPERTIES",
        "COUPON_POSTGRES_URL",
    ] {
        assert!(variable(toolbox, name).is_some(), "{name}");
        assert_eq!(variable(toolbox, name), variable(worker, name), "{name}");
    }
    assert_eq!(
        toolbox["volumeMounts"],
        json!([
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "tls", "mountPath": "/etc/coupon/tls", "readOnly": true},
        ])
    );
    assert!(pod["volumes"][0]["emptyDir"].is_object(), "{}", pod["volumes"]);
    let without = render(PRODUCTION, &["toolbox.enabled=false"]).await.unwrap();
    assert!(without.find("Deployment", "coupon-toolbox").is_none());
}

#[tokio::test]
async fn migrations_are_a_job_of_their_revision_and_no_hook() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    let job = rendered.find("Job", "coupon-migrate-1").expect("the Job of revision 1");
    assert!(job["metadata"].get("annotations").is_none());
    let without = render(PRODUCTION, &["migrations.enabled=false"]).await.unwrap();
    assert!(without.find("Job", "coupon-migrate-1").is_none());
}
