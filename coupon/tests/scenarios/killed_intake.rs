//! SIGKILL between the reserve call and the publish.

use std::collections::BTreeSet;

use testkit::{eventually::eventually, kafka::KafkaServer, proxy::Treatment};

use crate::{
    chain::{Chain, LIMIT, at_once, terms, users},
    process::IntakeProcess,
    records::{consumed, pending, publish},
};

/// Starts an intake whose records never leave, lets `claims` users claim with a key each, and kills it when all of them
/// are reserved.
async fn reserve_and_kill(chain: &Chain, claims: usize) {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let before = chain.numbers().await.taken;
    let mut on = chain.on.clone();
    on.kafka = proxy.kafka_settings();
    // It has given up none of them when it dies.
    on.installation.publish_timeout = LIMIT;
    let doomed = IntakeProcess::start(chain, &on).await;
    proxy.requests(Treatment::Hold);
    let asking = at_once(claims, |i| {
        let door = &doomed.door;
        async move { door.claim_with(&format!("user-{i}"), Some(&format!("key-{i}"))).await }
    });
    let reserved = eventually(LIMIT, "all of them are reserved", async || {
        chain.numbers().await.taken == before + claims as i64
    });
    tokio::select! {
        told = asking => panic!("answered before all were reserved: {told:?}"),
        () = reserved => {}
    }
    doomed.process.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_intake_had_reserved_is_swept_and_sold() {
    let chain = Chain::open(100).await;
    reserve_and_kill(&chain, 20).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    // All users, the twenty with their keys, until everybody has an answer that stays.
    let asked: BTreeSet<String> = users(0..100).collect();
    eventually(
        LIMIT,
        "everybody has a coupon, and nobody is a duplicate for ever",
        async || {
            let told = at_once(100, |i| {
                let door = &door;
                async move { door.claim_with(&format!("user-{i}"), Some(&format!("key-{i}"))).await }
            })
            .await;
            told.iter().all(|told| told.is("SUCCESS"))
        },
    )
    .await;
    chain.settles_with(100).await;
    let holders: BTreeSet<String> = chain.rows().await.into_iter().map(|(user, _)| user).collect();
    assert_eq!(holders, asked);
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_after_a_kill_is_pending_and_then_a_new_attempt_that_counts() {
    let chain = Chain::on(testkit::installation::TestInstallation::start().await.unwrap()).await;
    chain.apply(&terms(5)).await;
    reserve_and_kill(&chain, 1).await;
    let record = pending(&chain).await;

    let door = chain.intake().await;
    let told = door.claim_with("user-0", Some("key-0")).await;
    assert!(told.is("PENDING"), "{told:?}");
    let _worker = chain.worker().await;
    eventually(LIMIT, "a new attempt counts", async || {
        door.claim_with("user-0", Some("key-0")).await.is("SUCCESS")
    })
    .await;
    chain.settles_with(1).await;

    // The first record comes after all.
    publish(&chain, &record).await;
    consumed(&chain).await;
    chain.settles_with(1).await;
    assert_eq!(chain.rows().await.len(), 1);
    chain.assert_conserved().await;
}
