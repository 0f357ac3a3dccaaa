//! The same key again.

use campaign::{kafka::offsets::TopicReader, record::ClaimRecord};
use testkit::{eventually::eventually, installation::TestInstallation, kafka::KafkaServer};

use crate::chain::{Chain, LIMIT, terms};

/// Requests of all records in the topic.
async fn recorded(chain: &Chain) -> Vec<String> {
    let reader = TopicReader::new(&chain.on.kafka, LIMIT).unwrap();
    let topic = chain.on.naming.requests_topic();
    let marks = reader.watermarks(&topic).await.unwrap();
    let to = marks.iter().map(|(&id, marks)| (id, marks.high)).collect();
    let found = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = found.clone();
    reader
        .read(&topic, Default::default(), to, move |_, _, value| {
            let record = ClaimRecord::decode(value).unwrap();
            sink.lock()
                .unwrap()
                .extend(record.claims.iter().map(|claim| claim.request_id.to_string()));
            std::ops::ControlFlow::Continue(())
        })
        .await
        .unwrap();
    std::sync::Arc::try_unwrap(found).unwrap().into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_repeated_after_a_lost_answer_is_one_claim() {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    let direct = on.kafka.clone();
    on.kafka = proxy.kafka_settings();
    let mut chain = Chain::on(on).await;
    chain.apply(&terms(10)).await;
    let door = chain.intake().await;

    // Answered SUCCESS; the client does not hear of it and asks again, while Kafka is there and while it is out.
    let first = door.claim_with("a", Some("key-1")).await;
    assert!(first.is("SUCCESS"));
    let again = door.claim_with("a", Some("key-1")).await;
    assert!(again.is("PENDING"), "{again:?}");
    assert_eq!(again.request, first.request);
    assert!(door.claim_with("a", Some("another-key")).await.is("DUPLICATE"));
    proxy.refuse();
    eventually(LIMIT, "the door knows that Kafka is out", async || {
        door.claim("probe").await.is("COUPON_ISSUE_KAFKA_ERROR")
    })
    .await;
    let out = door.claim_with("a", Some("key-1")).await;
    assert!(out.is("PENDING") || out.is("COUPON_ISSUE_KAFKA_ERROR"), "{out:?}");
    proxy.restore();

    chain.on.kafka = direct;
    let _worker = chain.worker().await;
    eventually(LIMIT, "the worker has decided it", async || {
        door.claim_with("a", Some("key-1")).await.is("SUCCESS")
    })
    .await;
    let row = chain.rows().await.into_iter().find(|(user, _)| user == "a").unwrap();
    assert_eq!(Some(row.1.clone()), first.request);
    let records = recorded(&chain).await;
    assert_eq!(
        records.iter().filter(|&request| *request == row.1).count(),
        1,
        "{records:?}"
    );
    eventually(LIMIT, "nothing is pending", async || chain.numbers().await.pending == 0).await;
    chain.assert_conserved().await;
}
