//! What is refused at start, with what to do.

use intake::StartError;
use testkit::{
    installation::{TestInstallation, installation_settings},
    kafka::KafkaServer,
    postgres::PostgresServer,
    redis::{RedisOptions, RedisServer},
};
use tokio_util::sync::CancellationToken;

use crate::app::intake_settings;

async fn refusal(installation: &TestInstallation) -> StartError {
    match intake::start(intake_settings(installation), CancellationToken::new()).await {
        Ok(running) => panic!("it started: {running:?}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_redis_that_evicts() {
    let redis = RedisServer::start_with(RedisOptions::default().with("maxmemory-policy", "allkeys-lru"))
        .await
        .unwrap();
    let mut installation = TestInstallation::start().await.unwrap();
    installation.redis = redis.settings();
    let error = refusal(&installation).await;
    assert!(matches!(error, StartError::Redis(_)), "{error}");
    assert!(error.to_string().contains("noeviction"), "{error}");
}

#[tokio::test]
async fn a_database_without_migrations() {
    let postgres = PostgresServer::shared().await.unwrap();
    let mut installation = TestInstallation::start().await.unwrap();
    installation.postgres = postgres.empty_database().await.unwrap().settings;
    let error = refusal(&installation).await;
    assert!(matches!(error, StartError::Database(_)), "{error}");
    assert!(error.to_string().contains("coupon migrate"), "{error}");
}

#[tokio::test]
async fn a_missing_topic() {
    let mut installation = TestInstallation::start().await.unwrap();
    // Another prefix has other topics, and nobody made them.
    installation.installation = installation_settings();
    let error = refusal(&installation).await;
    assert!(matches!(error, StartError::Kafka(_)), "{error}");
    let topic = installation.installation.naming().unwrap().requests_topic();
    assert!(error.to_string().contains(&topic), "{error}");
}

#[tokio::test]
async fn topics_that_may_lose_records_are_refused_outside_of_development() {
    let mut installation = TestInstallation::start().await.unwrap();
    installation.installation.dev = false;
    let error = refusal(&installation).await;
    assert!(matches!(error, StartError::Kafka(_)), "{error}");
    assert!(error.to_string().contains("replication"), "{error}");
}

#[tokio::test]
async fn servers_that_are_not_there() {
    let installation = TestInstallation::start().await.unwrap();
    let nobody = testkit::ports::free_port().unwrap();
    let mut without_redis = installation.clone();
    without_redis.redis.redis_urls = vec![format!("redis://127.0.0.1:{nobody}")];
    assert!(matches!(refusal(&without_redis).await, StartError::Redis(_)));

    let mut without_postgres = installation.clone();
    let port = PostgresServer::shared().await.unwrap().port();
    let url = &mut without_postgres.postgres.postgres_url;
    *url = url.replace(&format!(":{port}"), &format!(":{nobody}"));
    assert!(matches!(refusal(&without_postgres).await, StartError::Database(_)));

    let mut without_kafka = installation;
    assert_ne!(without_kafka.kafka.kafka_brokers, "");
    without_kafka.kafka.kafka_brokers = format!("127.0.0.1:{nobody}");
    assert!(matches!(refusal(&without_kafka).await, StartError::Kafka(_)));
    let _ = KafkaServer::shared().await.unwrap();
}

#[tokio::test]
async fn logs_that_go_to_no_terminal_have_no_colours() {
    // It gets as far as Kafka's client, which says something at once, and is refused there.
    let installation = TestInstallation::start().await.unwrap();
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_intake"))
        .args(["--log", "trace", "--kafka-brokers", "127.0.0.1:1"])
        .args(["--redis-url", &installation.redis.redis_urls[0]])
        .args(["--postgres-url", &installation.postgres.postgres_url])
        .output()
        .await
        .unwrap();
    let logged = String::from_utf8(output.stderr).unwrap();
    assert!(logged.contains("TRACE") || logged.contains("DEBUG"), "{logged}");
    assert!(!logged.contains('\x1b'), "{logged}");
}
