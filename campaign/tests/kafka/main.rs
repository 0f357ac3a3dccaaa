//! The Kafka edge against real brokers.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod consumer;
mod offsets;
mod producer;
mod topics;

use std::time::Duration;

use campaign::{
    kafka::{
        producer::{Delivery, Outgoing, Producer},
        topics::create,
    },
    naming::Naming,
    settings::KafkaSettings,
};
use testkit::kafka::KafkaServer;

const LIMIT: Duration = Duration::from_secs(30);

/// Topics of one test's own.
async fn installation() -> (KafkaSettings, Naming) {
    let settings = KafkaServer::shared().await.expect("Kafka").settings();
    let naming = Naming::new(&format!("t-{}", uuid::Uuid::now_v7().simple())).expect("valid");
    create(&settings, &naming, 1).await.expect("topics");
    (settings, naming)
}

/// Stores `values` under one key, so in one partition and in order, and tells the partition.
async fn store(settings: &KafkaSettings, topic: &str, key: &str, values: &[String]) -> i32 {
    let producer = Producer::start(settings, LIMIT).expect("producer");
    let mut found = -1;
    for value in values {
        let record = Outgoing {
            topic,
            key: Some(key.as_bytes()),
            value: value.as_bytes(),
            headers: Vec::new(),
        };
        match producer.send(&record).await.expect("answer") {
            Delivery::Acknowledged { partition, .. } => found = partition,
            other => panic!("{other:?}"),
        }
    }
    found
}
