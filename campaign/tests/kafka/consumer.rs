use std::{collections::BTreeMap, time::Duration};

use campaign::kafka::consumer::{ConsumedRecord, ConsumerEvent, GroupConsumer};
use tokio::{sync::mpsc, time::timeout};

use crate::{LIMIT, installation, store};

const SESSION: Duration = Duration::from_secs(6);

fn values(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("v{i}")).collect()
}

async fn next(events: &mut mpsc::Receiver<ConsumerEvent>) -> ConsumerEvent {
    timeout(LIMIT, events.recv())
        .await
        .expect("an event in time")
        .expect("open")
}

async fn assigned(events: &mut mpsc::Receiver<ConsumerEvent>) -> Vec<i32> {
    loop {
        if let ConsumerEvent::Assigned(partitions) = next(events).await
            && !partitions.is_empty()
        {
            return partitions;
        }
    }
}

async fn record(events: &mut mpsc::Receiver<ConsumerEvent>) -> ConsumedRecord {
    loop {
        if let ConsumerEvent::Record(record) = next(events).await {
            return record;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_begins_where_it_is_told_and_moves_when_it_is_told() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let partition = store(&settings, &topic, "k", &values(10)).await;
    let (member, mut events) = GroupConsumer::join(&settings, &naming.worker_group(), &topic, SESSION).unwrap();
    let partitions = assigned(&mut events).await;
    assert_eq!(partitions.len(), 12);
    for &id in partitions.iter().filter(|&&id| id != partition) {
        member.start(id, 0);
    }
    member.start(partition, 6);
    for offset in 6..10 {
        let record = record(&mut events).await;
        assert_eq!((record.partition, record.offset), (partition, offset));
        assert_eq!(record.value, format!("v{offset}").as_bytes());
        assert!(record.appended_at.is_some());
    }
    // Back, as after a restore of the database.
    member.start(partition, 2);
    for offset in 2..10 {
        assert_eq!(record(&mut events).await.offset, offset);
    }
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_member_gives_its_partitions_back_and_gets_them_again() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let partition = store(&settings, &topic, "k", &values(3)).await;
    let (member, mut events) = GroupConsumer::join(&settings, &naming.worker_group(), &topic, SESSION).unwrap();
    assigned(&mut events).await;
    member.start(partition, 0);
    for offset in 0..3 {
        assert_eq!(record(&mut events).await.offset, offset);
    }
    member.renew();
    let revoked = loop {
        if let ConsumerEvent::Revoked(partitions) = next(&mut events).await {
            break partitions;
        }
    };
    assert_eq!(revoked.len(), 12);
    assert_eq!(assigned(&mut events).await.len(), 12);
    store(&settings, &topic, "k", &values(1)).await;
    member.start(partition, 1);
    for offset in 1..4 {
        assert_eq!(record(&mut events).await.offset, offset);
    }
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_back_partition_delivers_nothing_and_loses_nothing() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let held = store(&settings, &topic, "a", &values(5)).await;
    // Some other partition, to see that others go on.
    let (other, _) = {
        let mut found = None;
        for key in ["b", "c", "d", "e", "f", "g"] {
            let partition = store(&settings, &topic, key, &values(5)).await;
            if partition != held {
                found = Some((partition, key));
                break;
            }
        }
        found.expect("another partition")
    };
    let (member, mut events) = GroupConsumer::join(&settings, &naming.worker_group(), &topic, SESSION).unwrap();
    assigned(&mut events).await;
    member.pause(held);
    member.start(held, 0);
    member.start(other, 0);
    for offset in 0..5 {
        let record = record(&mut events).await;
        assert_eq!((record.partition, record.offset), (other, offset));
    }
    member.resume(held);
    for offset in 0..5 {
        let record = record(&mut events).await;
        assert_eq!((record.partition, record.offset), (held, offset));
    }
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_the_partitions_and_hand_them_over() {
    let (settings, naming) = installation().await;
    let topic = naming.requests_topic();
    let group = naming.worker_group();
    let (first, mut first_events) = GroupConsumer::join(&settings, &group, &topic, SESSION).unwrap();
    assert_eq!(assigned(&mut first_events).await.len(), 12);
    let (second, mut second_events) = GroupConsumer::join(&settings, &group, &topic, SESSION).unwrap();
    let revoked = loop {
        if let ConsumerEvent::Revoked(partitions) = next(&mut first_events).await {
            break partitions;
        }
    };
    assert_eq!(revoked.len(), 12);
    let mut owners = BTreeMap::new();
    for id in assigned(&mut first_events).await {
        owners.insert(id, 1);
    }
    for id in assigned(&mut second_events).await {
        assert_eq!(owners.insert(id, 2), None, "partition {id} has two owners");
    }
    assert_eq!(owners.len(), 12);
    first.leave().await;
    assert_eq!(assigned(&mut second_events).await.len(), 12);
    second.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_broker_is_gone_can_be_left_behind() {
    let (_, naming) = installation().await;
    let topic = naming.requests_topic();
    let proxy = testkit::kafka::KafkaServer::shared()
        .await
        .unwrap()
        .proxy()
        .await
        .unwrap();
    let (member, mut events) =
        GroupConsumer::join(&proxy.kafka_settings(), &naming.worker_group(), &topic, SESSION).unwrap();
    for partition in assigned(&mut events).await {
        member.start(partition, 0);
    }
    proxy.refuse();
    member.show_progress(0, 0);
    timeout(LIMIT, member.leave()).await.expect("leaving is given up");

    proxy.restore();
    let (member, mut events) =
        GroupConsumer::join(&proxy.kafka_settings(), &naming.worker_group(), &topic, SESSION).unwrap();
    assigned(&mut events).await;
    proxy.refuse();
    // Dropping, too, must not wait: this thread drives the runtime.
    let dropped = std::time::Instant::now();
    drop((member, events));
    assert!(dropped.elapsed() < LIMIT);
}
