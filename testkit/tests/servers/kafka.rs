use std::time::Duration;

use campaign::settings::KafkaSettings;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    producer::{FutureProducer, FutureRecord},
    types::RDKafkaErrorCode,
};
use testkit::{eventually::eventually, kafka::KafkaServer};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// For records that must be stored.
const PATIENT: Duration = Duration::from_secs(30);
/// For records that must not.
const IMPATIENT: Duration = Duration::from_secs(3);

fn client(settings: &KafkaSettings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &settings.kafka_brokers)
        .set("reconnect.backoff.max.ms", "100")
        .set("log_level", "0");
    config
}

fn producer(settings: &KafkaSettings, patience: Duration) -> FutureProducer {
    client(settings)
        .set("delivery.timeout.ms", patience.as_millis().to_string())
        .create()
        .unwrap()
}

async fn create_topic(settings: &KafkaSettings, topic: &str) {
    let admin: AdminClient<DefaultClientContext> = client(settings).create().unwrap();
    let created = admin
        .create_topics(
            [&NewTopic::new(topic, 1, TopicReplication::Fixed(1))],
            &AdminOptions::new(),
        )
        .await
        .unwrap();
    assert!(created[0].is_ok(), "{created:?}");
}

async fn publish(producer: &FutureProducer, topic: &str) -> Result<(), KafkaError> {
    let record: FutureRecord<'_, (), str> = FutureRecord::to(topic).payload("x");
    match producer.send(record, Duration::ZERO).await {
        Ok(_) => Ok(()),
        Err((error, _)) => Err(error),
    }
}

async fn end(settings: &KafkaSettings, topic: &str) -> i64 {
    eventually(LIMIT, "the end is told", async || look_at_end(settings, topic).await).await
}

async fn look_at_end(settings: &KafkaSettings, topic: &str) -> Option<i64> {
    let consumer: BaseConsumer = client(settings).create().unwrap();
    let topic = topic.to_owned();
    tokio::task::spawn_blocking(move || consumer.fetch_watermarks(&topic, 0, Duration::from_secs(5)))
        .await
        .unwrap()
        .ok()
        .map(|(_, high)| high)
}

#[tokio::test]
async fn keeps_its_records_across_a_restart_on_its_port() {
    let mut server = KafkaServer::start().await.unwrap();
    let settings = server.settings();
    create_topic(&settings, "kept").await;
    let patient = producer(&settings, PATIENT);
    publish(&patient, "kept").await.unwrap();

    server.stop().await.unwrap();
    publish(&producer(&settings, IMPATIENT), "kept").await.unwrap_err();

    server.restart().await.unwrap();
    assert_eq!(server.settings().kafka_brokers, settings.kafka_brokers);
    assert_eq!(end(&settings, "kept").await, 1);
    publish(&patient, "kept").await.unwrap();
}

#[tokio::test]
async fn a_proxy_swallows_acknowledgements_of_what_was_stored() {
    let server = KafkaServer::shared().await.unwrap();
    let proxy = server.proxy().await.unwrap();
    let topic = uuid::Uuid::new_v4().to_string();
    create_topic(&server.settings(), &topic).await;
    let impatient = producer(&proxy.kafka_settings(), IMPATIENT);
    eventually(LIMIT, "the client knows the way", async || {
        publish(&impatient, &topic).await.is_ok()
    })
    .await;
    let before = end(&server.settings(), &topic).await;

    proxy.drop_replies();
    let error = publish(&impatient, &topic).await.unwrap_err();
    assert_eq!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::MessageTimedOut));
    eventually(LIMIT, "it was stored", async || {
        end(&server.settings(), &topic).await > before
    })
    .await;

    proxy.restore();
    eventually(LIMIT, "the client comes back", async || {
        publish(&impatient, &topic).await.is_ok()
    })
    .await;

    proxy.refuse();
    publish(&impatient, &topic).await.unwrap_err();
    proxy.restore();
    eventually(LIMIT, "the client comes back", async || {
        publish(&impatient, &topic).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn nobody_makes_a_topic_by_asking_for_it() {
    let server = KafkaServer::shared().await.unwrap();
    let producer = producer(&server.settings(), IMPATIENT);
    publish(&producer, "never-created").await.unwrap_err();
    assert_eq!(look_at_end(&server.settings(), "never-created").await, None);
}
