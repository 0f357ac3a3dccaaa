use campaign::{
    kafka::{client::KafkaError, topics},
    naming::Naming,
};
use testkit::kafka::KafkaServer;

use crate::installation;

fn refused(answer: Result<(), KafkaError>) -> String {
    match answer {
        Err(KafkaError::Unsuitable(text)) => text,
        other => panic!("want a refusal, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_topics_are_named_with_what_to_do() {
    let settings = KafkaServer::shared().await.unwrap().settings();
    let naming = Naming::new("nobody-made-these").unwrap();
    let text = refused(topics::check(&settings, &naming, true).await);
    for wanted in [
        "nobody-made-these.issue.requests",
        "nobody-made-these.issue.dlq",
        "nobody-made-these.lifecycle",
        "create",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_copy_of_each_claim_is_enough_only_for_development() {
    let (settings, naming) = installation().await;
    topics::check(&settings, &naming, true).await.unwrap();
    let text = refused(topics::check(&settings, &naming, false).await);
    assert!(text.contains("replication 1"), "{text}");
    assert!(text.contains("min.insync.replicas"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_again_changes_nothing() {
    let (settings, naming) = installation().await;
    topics::create(&settings, &naming, 1).await.unwrap();
}
