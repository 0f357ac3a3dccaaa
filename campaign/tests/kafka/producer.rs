use std::time::Duration;

use campaign::kafka::producer::{Delivery, Outgoing, Producer};
use testkit::{
    eventually::eventually,
    kafka::{KafkaOptions, KafkaServer},
};

use crate::{LIMIT, installation};

fn to(topic: &str) -> Outgoing<'_> {
    Outgoing {
        topic,
        value: b"claim",
        ..Outgoing::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_record_is_acknowledged_with_its_place() {
    let (settings, naming) = installation().await;
    let producer = Producer::start(&settings, LIMIT).unwrap();
    let topic = naming.requests_topic();
    assert!(matches!(
        producer.send(&to(&topic)).await.unwrap(),
        Delivery::Acknowledged { offset: 0, .. }
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_too_large_for_the_client_surely_is_not_stored() {
    let (settings, naming) = installation().await;
    let producer = Producer::start(&settings, LIMIT).unwrap();
    let topic = naming.requests_topic();
    let value = vec![b'x'; 2_000_000];
    let record = Outgoing {
        value: &value,
        ..to(&topic)
    };
    assert!(matches!(producer.send(&record).await.unwrap(), Delivery::NotStored(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_never_comes_is_unknown() {
    let (_, naming) = installation().await;
    let server = KafkaServer::shared().await.unwrap();
    let proxy = server.proxy().await.unwrap();
    let producer = Producer::start(&proxy.kafka_settings(), Duration::from_secs(15)).unwrap();
    let topic = naming.requests_topic();
    assert!(matches!(
        producer.send(&to(&topic)).await.unwrap(),
        Delivery::Acknowledged { .. }
    ));
    proxy.drop_replies();
    assert!(matches!(
        producer.send(&to(&topic)).await.unwrap(),
        Delivery::Unknown(_)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_every_broker_is_known_at_once_and_so_is_their_return() {
    let mut server = KafkaServer::start_with(KafkaOptions::default()).await.unwrap();
    let naming = campaign::naming::Naming::new("outage").unwrap();
    campaign::kafka::topics::create(&server.settings(), &naming, 1)
        .await
        .unwrap();
    // Far longer than it may take to notice.
    let producer = Producer::start(&server.settings(), Duration::from_secs(600)).unwrap();
    let topic = naming.requests_topic();
    assert!(matches!(
        producer.send(&to(&topic)).await.unwrap(),
        Delivery::Acknowledged { .. }
    ));
    assert!(producer.brokers_up());

    server.stop().await.unwrap();
    eventually(LIMIT, "the producer knows that the broker is gone", async || {
        !producer.brokers_up()
    })
    .await;

    server.restart().await.unwrap();
    eventually(LIMIT, "the producer knows that the broker is back", async || {
        producer.brokers_up()
    })
    .await;
    assert!(matches!(
        producer.send(&to(&topic)).await.unwrap(),
        Delivery::Acknowledged { .. }
    ));
    producer.flush(LIMIT).await.unwrap();
}

/// As one did whose broker had come back: it failed on and on.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_gets_nothing_through_is_made_anew_and_sends_again() {
    let (_, naming) = installation().await;
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let producer = Producer::start(&proxy.kafka_settings(), Duration::from_secs(5)).unwrap();
    let topic = naming.requests_topic();
    let acknowledged = async || matches!(producer.send(&to(&topic)).await, Ok(Delivery::Acknowledged { .. }));
    eventually(LIMIT, "it sends", acknowledged).await;
    assert_eq!(producer.renewals(), 0);

    proxy.refuse();
    eventually(LIMIT * 3, "it is made anew", async || {
        assert!(!acknowledged().await, "nobody can acknowledge");
        producer.renewals() > 0
    })
    .await;
    proxy.restore();
    eventually(LIMIT, "the new one sends", acknowledged).await;
    eventually(LIMIT, "it knows its broker", async || producer.brokers_up()).await;
}
