use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{Arc, Mutex},
    time::Duration,
};

use campaign::kafka::{
    client::KafkaError,
    offsets::{TopicReader, Watermarks},
};
use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use testkit::{eventually::eventually, kafka::KafkaServer};

use crate::{LIMIT, installation, store};

fn values(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("v{i}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_partition_tells_its_end() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let partition = store(&settings, &topic, "k", &values(3)).await;
    let reader = TopicReader::new(&settings, LIMIT).unwrap();
    let marks = reader.watermarks(&topic).await.unwrap();
    assert_eq!(marks.len(), 12);
    for (id, found) in marks {
        let high = if id == partition { 3 } else { 0 };
        assert_eq!(found, Watermarks { low: 0, high }, "partition {id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_what_lies_between_two_offsets_is_read() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let partition = store(&settings, &topic, "k", &values(10)).await;
    let reader = TopicReader::new(&settings, LIMIT).unwrap();
    let read = async |from: Option<i64>, to: i64| {
        let found = Arc::new(Mutex::new(Vec::new()));
        let from = from.map(|from| (partition, from)).into_iter().collect();
        // Partitions without records are at their end already.
        let to = (0..12).map(|id| (id, if id == partition { to } else { 0 })).collect();
        let sink = found.clone();
        reader
            .read(&topic, from, to, move |_, offset, value| {
                sink.lock()
                    .unwrap()
                    .push((offset, String::from_utf8(value.to_vec()).unwrap()));
                ControlFlow::Continue(())
            })
            .await
            .map(|()| Arc::try_unwrap(found).unwrap().into_inner().unwrap())
    };
    let expected = |range: std::ops::Range<i64>| range.map(|i| (i, format!("v{i}"))).collect::<Vec<_>>();
    assert_eq!(read(Some(4), 7).await.unwrap(), expected(4..7));
    assert_eq!(read(None, 10).await.unwrap(), expected(0..10));
    assert_eq!(read(Some(10), 10).await.unwrap(), []);
    // What is not there yet cannot be read: an error, not an end.
    assert!(matches!(read(Some(4), 11).await, Err(KafkaError::Unavailable { .. })));
}

/// The marker of a transaction takes an offset and is no record.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_hold_no_record_are_passed_over() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let partition = store(&settings, &topic, "k", &values(2)).await;
    let write = {
        let (brokers, topic) = (settings.kafka_brokers.clone(), topic.clone());
        move || {
            let producer: BaseProducer = ClientConfig::new()
                .set("bootstrap.servers", brokers)
                .set("transactional.id", &topic)
                .create()
                .unwrap();
            producer.init_transactions(LIMIT).unwrap();
            producer.begin_transaction().unwrap();
            let record = BaseRecord::<(), _>::to(&topic).partition(partition).payload("v2");
            producer.send(record).unwrap();
            producer.commit_transaction(LIMIT).unwrap();
        }
    };
    tokio::task::spawn_blocking(write).await.unwrap();
    let reader = TopicReader::new(&settings, LIMIT).unwrap();
    // The broker writes the commit's marker after it has answered.
    eventually(LIMIT, "the record and its marker are there", async || {
        reader.watermarks(&topic).await.unwrap()[&partition].high == 4
    })
    .await;
    for (from, expected) in [(0, vec![0, 1, 2]), (3, vec![])] {
        let found = Arc::new(Mutex::new(Vec::new()));
        let sink = found.clone();
        let holds = reader.holds_record(&topic, partition, from, 4).await.unwrap();
        assert_eq!(holds, !expected.is_empty());
        let (from, to) = (HashMap::from([(partition, from)]), HashMap::from([(partition, 4)]));
        reader
            .read(&topic, from, to, move |_, offset, _| {
                sink.lock().unwrap().push(offset);
                ControlFlow::Continue(())
            })
            .await
            .unwrap();
        assert_eq!(*found.lock().unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_does_not_answer_is_an_error_not_an_empty_topic() {
    let (_, naming) = installation().await;
    let topic = naming.requests_topic();
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    proxy.shut().await;
    let reader = TopicReader::new(&proxy.kafka_settings(), Duration::from_secs(1)).unwrap();
    assert!(matches!(
        reader.watermarks(&topic).await,
        Err(KafkaError::Unavailable { .. })
    ));
    let to = HashMap::from([(0, 1)]);
    let read = reader.read(&topic, HashMap::new(), to, |_, _, _| ControlFlow::Continue(()));
    assert!(matches!(read.await, Err(KafkaError::Unavailable { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_missing_is_an_error() {
    let (settings, _) = installation().await;
    let reader = TopicReader::new(&settings, Duration::from_secs(5)).unwrap();
    assert!(reader.watermarks("no-such-topic").await.is_err());
}
