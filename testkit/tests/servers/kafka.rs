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

fn client(settings: &KafkaSettings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &settings.kafka_brokers)
        .set("delivery.timeout.ms", "2000")
        .set("reconnect.backoff.max.ms", "100")
        .set("log_level", "0");
    config
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

async fn end(settings: &KafkaSettings, topic: &str) -> Option<i64> {
    let consumer: BaseConsumer = client(settings).create().unwrap();
    let topic = topic.to_owned();
    tokio::task::spawn_blocking(move || consumer.fetch_watermarks(&topic, 0, Duration::from_secs(1)))
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
    let producer: FutureProducer = client(&settings).create().unwrap();
    publish(&producer, "kept").await.unwrap();

    server.stop().await.unwrap();
    publish(&producer, "kept").await.unwrap_err();

    server.restart().await.unwrap();
    assert_eq!(server.settings().kafka_brokers, settings.kafka_brokers);
    assert_eq!(end(&settings, "kept").await, Some(1));
    publish(&producer, "kept").await.unwrap();
}

#[tokio::test]
async fn a_proxy_swallows_acknowledgements_of_what_was_stored() {
    let server = KafkaServer::shared().await.unwrap();
    let proxy = server.proxy().await.unwrap();
    let topic = uuid::Uuid::new_v4().to_string();
    create_topic(&server.settings(), &topic).await;
    let producer: FutureProducer = client(&proxy.kafka_settings()).create().unwrap();
    publish(&producer, &topic).await.unwrap();

    proxy.drop_replies();
    let error = publish(&producer, &topic).await.unwrap_err();
    assert_eq!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::MessageTimedOut));
    assert!(end(&server.settings(), &topic).await.unwrap() >= 2);

    proxy.restore();
    eventually(Duration::from_secs(20), "the client comes back", async || {
        publish(&producer, &topic).await.is_ok()
    })
    .await;

    proxy.refuse();
    publish(&producer, &topic).await.unwrap_err();
    proxy.restore();
    eventually(Duration::from_secs(20), "the client comes back", async || {
        publish(&producer, &topic).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn nobody_makes_a_topic_by_asking_for_it() {
    let server = KafkaServer::shared().await.unwrap();
    let producer: FutureProducer = client(&server.settings()).create().unwrap();
    publish(&producer, "never-created").await.unwrap_err();
    assert_eq!(end(&server.settings(), "never-created").await, None);
}
