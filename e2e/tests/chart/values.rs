//! Values that cannot be meant are refused, and the refusal names them.

use e2e::chart::render;

use crate::{DEV, PRODUCTION};

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
