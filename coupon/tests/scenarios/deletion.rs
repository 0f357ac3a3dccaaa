//! A campaign is deleted while claims are on their way.

use std::time::Duration;

use campaign::{
    align::{
        Round,
        deletion::{Deletion, Undrained},
    },
    identity::CampaignId,
    manifest::DeletionPolicy,
    redis::state::StateAnswer,
};
use testkit::eventually::eventually;

use crate::{
    chain::{Chain, Door, LIMIT, how_many, successes, terms, users},
    rebuild::lose_state,
};

/// 30 of 50 claims are on their way when it is deleted; they become rows before it ends.
async fn deleted(chain: &Chain, door: &Door, policy: DeletionPolicy) -> CampaignId {
    let told = door.burst(users(0..30), 30).await;
    assert_eq!(how_many(&told, "SUCCESS"), 30);
    let delete = async |limit| chain.aligner.delete(&chain.campaign, policy, limit).await.unwrap();
    let draining = eventually(LIMIT, "the door is shut", async || match delete(Duration::ZERO).await {
        Deletion::Draining(Undrained::Claims(claims)) => Some(claims),
        _ => None,
    });
    assert_eq!(draining.await, 30, "nobody persists them yet");
    assert!(door.claim("late").await.is("PAUSED"));

    let worker = chain.worker().await;
    let Deletion::Done(ended) = delete(LIMIT).await else {
        panic!("not drained");
    };
    assert_eq!(chain.rows_of(ended).await, successes(&told));
    eventually(LIMIT, "the door no longer knows it", async || {
        door.claim("late").await.status == 404
    })
    .await;
    assert_eq!(chain.aligner.round(&chain.campaign).await.unwrap(), Round::NoCampaign);
    assert_eq!(
        chain.state.state(&chain.campaign).await.unwrap(),
        StateAnswer::NotInitialized,
        "nobody has reopened it"
    );
    assert_eq!(
        delete(Duration::ZERO).await,
        Deletion::NotLive,
        "once more changes nothing"
    );
    worker.stop().await;
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_campaign_goes_on_with_the_next_apply() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let ended = deleted(&chain, &door, DeletionPolicy::Retain).await;
    // A cancel in between waits for no state.
    let (_, request) = chain.rows_of(ended).await.first().unwrap().clone();
    assert_eq!(door.cancel(&request).await, 200);
    let worker = chain.worker().await;
    eventually(LIMIT, "its event is out", async || {
        chain.count("SELECT count(*) FROM outbox").await == 0
    })
    .await;

    let applied = chain.aligner.apply(&chain.campaign, &terms(50)).await.unwrap();
    assert_eq!(applied.campaign.id, ended);
    assert!(!applied.created);
    eventually(LIMIT, "the door knows it again", async || {
        door.claim("user-0").await.is("DUPLICATE")
    })
    .await;
    let again = door.burst(users(0..30), 30).await;
    assert_eq!(
        how_many(&again, "DUPLICATE"),
        30,
        "holders stay holders, canceled ones too"
    );
    let more = door.burst(users(30..60), 30).await;
    assert_eq!((how_many(&more, "SUCCESS"), how_many(&more, "SOLD_OUT")), (21, 9));
    chain.settles_with(50).await;
    chain.assert_conserved().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_campaign_can_be_archived_afterwards() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let ended = deleted(&chain, &door, DeletionPolicy::Retain).await;
    let retired = chain.aligner.database.retired_campaigns().await.unwrap();
    assert!(retired.iter().any(|row| row.id == ended && row.name == chain.campaign));

    let delete = async || {
        let deleting = chain
            .aligner
            .delete(&chain.campaign, DeletionPolicy::Delete, Duration::ZERO);
        deleting.await.unwrap()
    };
    assert_eq!(delete().await, Deletion::Done(ended));
    assert_eq!(delete().await, Deletion::NotLive, "once more changes nothing");
    let retired = chain.aligner.database.retired_campaigns().await.unwrap();
    assert!(retired.iter().all(|row| row.id != ended));

    let applied = chain.aligner.apply(&chain.campaign, &terms(50)).await.unwrap();
    assert!(applied.created);
    assert_ne!(applied.campaign.id, ended);
    assert_eq!(chain.rows_of(ended).await.len(), 30, "what was given stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_campaign_leaves_its_name_to_another_one() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let ended = deleted(&chain, &door, DeletionPolicy::Delete).await;
    let applied = chain.aligner.apply(&chain.campaign, &terms(50)).await.unwrap();
    assert_ne!(applied.campaign.id, ended);
    assert!(applied.created);
    assert_eq!(chain.numbers().await.taken, 0);
    eventually(LIMIT, "the door knows the new one", async || {
        door.claim("user-0").await.is("SUCCESS")
    })
    .await;
    assert_eq!(chain.rows_of(ended).await.len(), 30, "what was given stays");
    assert_eq!(chain.count("SELECT count(*) FROM rejection").await, 0);
}

/// A missing state does not say that nothing is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_without_a_state_waits_for_the_claims_in_kafka() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..10), 10).await;
    assert_eq!(how_many(&told, "SUCCESS"), 10);
    lose_state(&chain).await;
    let delete = async || {
        let deleting = chain
            .aligner
            .delete(&chain.campaign, DeletionPolicy::Delete, Duration::ZERO);
        deleting.await.unwrap()
    };
    eventually(LIMIT, "what is on its way is known", async || {
        delete().await == Deletion::Draining(Undrained::Claims(10))
    })
    .await;
    let _worker = chain.worker().await;
    let ended = eventually(LIMIT, "it is deleted", async || match delete().await {
        Deletion::Done(ended) => Some(ended),
        _ => None,
    })
    .await;
    assert_eq!(chain.rows_of(ended).await, successes(&told));
}
