//! Values that cannot be meant are refused, and the refusal names them.

use e2e::chart::render;

use crate::{DEV, PRODUCTION, REDIS_CLUSTER};

async fn refusal(values: &str, set: &str) -> String {
    match render(values, &[set]).await {
        Ok(_) => panic!("{set} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn the_schema_refuses_what_is_misspelled_or_out_of_range() {
    for (set, named) in [
        ("intakes={}", "intakes"),
        ("intake.replicas=3", "replicas"),
        ("redis.mode=\"cluser\"", "mode"),
        ("redis.urls=[\"localhost:6379\"]", "urls"),
        ("worker.maxReplicas=13", "maxReplicas"),
        ("worker.minReplicas=0", "minReplicas"),
        ("postgres.url=\"mysql://db\"", "url"),
        ("installation.publishTimeoutSeconds=\"5s\"", "publishTimeoutSeconds"),
        ("installation.keyPrefix=\"a:b\"", "keyPrefix"),
        ("image.digest=\"latest\"", "digest"),
        ("logs.format=\"xml\"", "format"),
        ("devServers.redis.version=8", "version"),
        ("operator.namespaces=[\"Shop\"]", "namespaces"),
        ("installation.namespace=\"my shop\"", "namespace"),
        ("toolbox.replicas=2", "replicas"),
    ] {
        let refusal = refusal(DEV, set).await;
        assert!(refusal.contains(named), "{set}: {refusal}");
    }
}

#[tokio::test]
async fn values_that_do_not_fit_each_other_are_refused_with_what_to_do() {
    for (values, set, named) in [
        (
            PRODUCTION,
            "postgres.maxConnections=50",
            "postgres.maxConnections: the pools may open",
        ),
        (PRODUCTION, "intake.minReplicas=9", "intake.minReplicas: 9 is more than"),
        (PRODUCTION, "worker.postgresPool=4", "worker.postgresPool"),
        (
            PRODUCTION,
            "redis.existingSecret.name=\"\"",
            "redis.urls: where is Redis?",
        ),
        (
            PRODUCTION,
            "postgres.existingSecret.urlKey=\"\"",
            "postgres.url: where is Postgres?",
        ),
        (PRODUCTION, "kafka.brokers=\"\"", "kafka.brokers: where is Kafka?"),
        (
            REDIS_CLUSTER,
            "redis.existingSecret={\"name\":\"redis\"}",
            "nothing is read of Secret redis: say which of its keys",
        ),
        (
            REDIS_CLUSTER,
            "kafka.existingSecret={\"name\":\"kafka\"}",
            "nothing is read of Secret kafka: say which of its keys",
        ),
        (
            REDIS_CLUSTER,
            "postgres.existingSecret={\"urlKey\":\"url\"}",
            "postgres.existingSecret.name: a key is named (url), but no Secret",
        ),
        (PRODUCTION, "kafka.brokers=\"kafka\"", "\"kafka\" is no host:port"),
        (
            PRODUCTION,
            "kafka.brokers=\"kafka-0:9092,kafka-1\"",
            "\"kafka-1\" is no host:port",
        ),
        (
            REDIS_CLUSTER,
            "redis.urls=[\"rediss://user:secret@node:6379\"]",
            "redis.urls: it has a password in it",
        ),
        (
            REDIS_CLUSTER,
            "redis.urls=[\"rediss://node-0:6379\",\"rediss://:secret@node-1:6379\"]",
            "redis.urls: it has a password in it",
        ),
        (
            REDIS_CLUSTER,
            "postgres.url=\"postgres://coupon:secret@postgres/coupon\"",
            "postgres.url: it has a password in it",
        ),
        (
            REDIS_CLUSTER,
            "postgres.url=\"postgres://coupon@postgres/coupon?sslmode=require&password=secret\"",
            "postgres.url: it has a password in it",
        ),
        (
            REDIS_CLUSTER,
            "kafka.properties={\"sasl.password\":\"secret\"}",
            "kafka.properties: sasl.password is a secret",
        ),
        (
            DEV,
            "intake.extraEnv=[{\"name\":\"COUPON_NAMESPACE\",\"value\":\"shop\"}]",
            "intake.extraEnv: COUPON_NAMESPACE is set by the chart",
        ),
        (
            DEV,
            "operator.extraEnv=[{\"name\":\"COUPON_OPERATOR_LEASE\",\"value\":\"mine\"}]",
            "operator.extraEnv: COUPON_OPERATOR_LEASE is set by the chart",
        ),
        (
            DEV,
            "worker.extraEnv=[{\"name\":\"COUPON_PROCESSING_RATE\",\"value\":\"5\"}]",
            "worker.extraEnv: COUPON_PROCESSING_RATE is set by the chart",
        ),
        (
            DEV,
            "podMonitor.enabled=true",
            "networkPolicy.internalFrom: podMonitor is enabled, but nobody",
        ),
        (
            DEV,
            "networkPolicy.egress.enabled=true",
            "networkPolicy.egress.rules: egress is closed",
        ),
        (
            DEV,
            "installation.dev=false",
            "installation.dev: the dev servers have one copy",
        ),
    ] {
        let refusal = refusal(values, set).await;
        assert!(refusal.contains(named), "{set}: {refusal}");
    }
}

#[tokio::test]
async fn more_pods_fit_when_the_server_has_room() {
    render(PRODUCTION, &["postgres.maxConnections=400", "intake.maxReplicas=40"])
        .await
        .expect("40 intakes");
}

#[tokio::test]
async fn what_the_checks_let_pass_is_rendered() {
    for (values, set) in [
        (DEV, "worker.extraEnv=[{\"name\":\"TZ\",\"value\":\"UTC\"}]"),
        // A user without a password, and brokers by address.
        (REDIS_CLUSTER, "redis.urls=[\"rediss://reader@node-0:6379\"]"),
        (REDIS_CLUSTER, "kafka.brokers=\"10.0.0.1:9092,[fd00::1]:9092\""),
    ] {
        render(values, &[set])
            .await
            .unwrap_or_else(|error| panic!("{set}: {error}"));
    }
    // Without policies, nobody is kept away.
    render(DEV, &["podMonitor.enabled=true", "networkPolicy.enabled=false"])
        .await
        .expect("monitors");
}
