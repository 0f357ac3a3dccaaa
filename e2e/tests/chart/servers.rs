//! Secrets reach the processes as environment variables and never lie in the chart's objects.

use e2e::chart::{Rendered, render, variable};
use serde_json::Value;

use crate::{DEV, PRODUCTION, REDIS_CLUSTER};

fn container<'a>(rendered: &'a Rendered, component: &str) -> &'a Value {
    &rendered
        .find("Deployment", &format!("coupon-{component}"))
        .expect("the Deployment")["spec"]["template"]["spec"]["containers"][0]
}

fn assert_variables(rendered: &Rendered, wanted: &[(&str, Option<&str>)]) {
    for component in ["operator", "intake", "worker"] {
        for (name, value) in wanted {
            let found = variable(container(rendered, component), name);
            assert_eq!(found.as_deref(), *value, "{component} {name}");
        }
    }
}

#[tokio::test]
async fn secrets_of_sentinels_kafka_and_postgres_are_read() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    assert_variables(
        &rendered,
        &[
            ("COUPON_REDIS_MODE", Some("sentinel")),
            ("COUPON_REDIS_URLS", Some("redis/sentinels")),
            ("COUPON_REDIS_USERNAME", Some("redis/user")),
            ("COUPON_REDIS_PASSWORD", Some("redis/password")),
            ("COUPON_KAFKA_PROPERTIES", Some("kafka/properties")),
            ("COUPON_POSTGRES_URL", Some("postgres/url")),
            ("SSL_CERT_FILE", Some("/etc/coupon/tls/redis-ca.crt")),
            ("COUPON_NAMESPACE", Some("coupon")),
            ("COUPON_DEV", Some("false")),
        ],
    );
    assert!(rendered.of_kind("Secret").is_empty());
}

#[tokio::test]
async fn plain_values_do_where_there_is_nothing_to_hide() {
    let rendered = render(REDIS_CLUSTER, &[]).await.unwrap();
    assert_variables(
        &rendered,
        &[
            ("COUPON_REDIS_MODE", Some("cluster")),
            ("COUPON_REDIS_URLS", Some("rediss://node-0:6379,rediss://node-1:6379")),
            ("COUPON_REDIS_PASSWORD", None),
            (
                "COUPON_KAFKA_PROPERTIES",
                Some("security.protocol=ssl,ssl.ca.location=/etc/coupon/tls/ca.crt"),
            ),
            ("SSL_CERT_FILE", None),
        ],
    );
    for component in ["operator", "intake", "worker"] {
        assert_eq!(
            container(&rendered, component)["volumeMounts"][0]["mountPath"],
            "/etc/coupon/tls"
        );
    }
}

#[tokio::test]
async fn the_dev_servers_are_found_under_the_name_of_the_release() {
    let rendered = render(DEV, &[]).await.unwrap();
    assert_variables(
        &rendered,
        &[
            ("COUPON_REDIS_URLS", Some("redis://coupon-redis:6379")),
            ("COUPON_KAFKA_BROKERS", Some("coupon-kafka:9092")),
            (
                "COUPON_POSTGRES_URL",
                Some("postgres://coupon@coupon-postgres:5432/coupon"),
            ),
            ("COUPON_DEV", Some("true")),
        ],
    );
    for server in ["redis", "kafka", "postgres"] {
        assert!(
            rendered.find("Service", &format!("coupon-{server}")).is_some(),
            "{server}"
        );
    }
    assert!(
        render(PRODUCTION, &[])
            .await
            .unwrap()
            .find("Deployment", "coupon-redis")
            .is_none()
    );
}

#[tokio::test]
async fn ceilings_and_namespaces_reach_the_operator() {
    let rendered = render(PRODUCTION, &[]).await.unwrap();
    let operator = container(&rendered, "operator");
    for (name, value) in [
        ("COUPON_OPERATOR_NAMESPACES", "shop,games"),
        ("COUPON_INTAKE_DEPLOYMENT", "coupon-intake"),
        ("COUPON_INTAKE_MAX_REPLICAS", "8"),
        ("COUPON_WORKER_DEPLOYMENT", "coupon-worker"),
        ("COUPON_WORKER_MAX_REPLICAS", "4"),
    ] {
        assert_eq!(variable(operator, name).as_deref(), Some(value), "{name}");
    }
}
