use campaign::postgres::{
    campaign::{CampaignTerms, OnDeadLetter},
    parked::Replay,
    persist::{PersistError, Reason},
};

use crate::shop::{Shop, rejected, reservation, terms, user};

#[tokio::test]
async fn a_parked_claim_keeps_its_slot() {
    let shop = Shop::open(2).await;
    let record = shop.record(&["dead", "a"]);
    let dead = reservation(&record, 0);
    let persisted = shop.persist_dead(&[record], std::slice::from_ref(&dead)).await.unwrap();
    assert_eq!((persisted.issued, persisted.parked), (1, 1));
    assert_eq!(rejected(&persisted), []);
    let persisted = shop.persist(&[shop.record(&["b"])]).await;
    assert_eq!(rejected(&persisted), [("b", Reason::OutOfStock)]);

    let parked = shop.database.parked(Some(shop.campaign.id)).await.unwrap();
    assert_eq!(parked.len(), 1);
    assert_eq!(
        (parked[0].user.as_str(), parked[0].reason.as_str()),
        ("dead", "refused")
    );
    assert_eq!((&parked[0].reservation, parked[0].discarded), (&dead, false));
    assert_eq!(shop.database.parked(None).await.unwrap(), parked);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_released_claim_frees_its_slot() {
    let shop = Shop::open_with(&CampaignTerms {
        on_dead_letter: OnDeadLetter::Release,
        ..terms(1)
    })
    .await;
    let record = shop.record(&["dead", "a"]);
    let request = record.record.claims[0].request_id;
    let dead = reservation(&record, 0);
    let persisted = shop.persist_dead(&[record], &[dead]).await.unwrap();
    assert_eq!((persisted.issued, persisted.parked), (1, 0));
    assert_eq!(rejected(&persisted), [("dead", Reason::DeadLettered)]);
    assert_eq!(
        shop.database.rejection(request, &user("dead")).await.unwrap(),
        Some(Reason::DeadLettered)
    );
}

/// Commit, lose the reply, use up the tries: the row is there.
#[tokio::test]
async fn a_claim_that_has_its_row_is_no_dead_letter() {
    for on_dead_letter in [OnDeadLetter::Park, OnDeadLetter::Release] {
        let shop = Shop::open_with(&CampaignTerms {
            on_dead_letter,
            ..terms(5)
        })
        .await;
        let record = shop.record(&["a"]);
        shop.persist(std::slice::from_ref(&record)).await;
        // The same request once more, in a batch that nobody has decided.
        let mut again = shop.record(&["a"]);
        again.record.claims = record.record.claims.clone();
        let dead = reservation(&again, 0);
        let persisted = shop.persist_dead(&[again], &[dead]).await.unwrap();
        assert_eq!((persisted.parked, rejected(&persisted)), (0, vec![]));
        // And another request of that user.
        let other = shop.record(&["a"]);
        let dead = reservation(&other, 0);
        let persisted = shop.persist_dead(&[other], &[dead]).await.unwrap();
        assert_eq!(rejected(&persisted), [("a", Reason::AlreadyIssued)]);
        shop.assert_consistent().await;
    }
}

#[tokio::test]
async fn more_than_20_dead_letters_a_minute_wait() {
    for on_dead_letter in [OnDeadLetter::Park, OnDeadLetter::Release] {
        let shop = Shop::open_with(&CampaignTerms {
            on_dead_letter,
            ..terms(100)
        })
        .await;
        let names: Vec<String> = (0..21).map(|n| format!("u{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let record = shop.record(&names);
        let dead: Vec<_> = (0..21).map(|n| reservation(&record, n)).collect();
        let refused = shop.persist_dead(&[record], &dead).await;
        assert!(
            matches!(refused, Err(PersistError::TooManyDeadLetters { count: 21, .. })),
            "{refused:?}"
        );
        assert_eq!(shop.count("batch").await, 0);

        let record = shop.record(&names[..20]);
        let dead: Vec<_> = (0..20).map(|n| reservation(&record, n)).collect();
        shop.persist_dead(&[record], &dead).await.unwrap();
        let one_more = [shop.record(&["late", "alive"])];
        let dead = [reservation(&one_more[0], 0)];
        let refused = shop.persist_dead(&one_more, &dead).await;
        assert!(
            matches!(refused, Err(PersistError::TooManyDeadLetters { count: 21, .. })),
            "{refused:?}"
        );
        // A minute later.
        shop.execute(
            "UPDATE parked SET parked_at = parked_at - interval '61 s'; \
             UPDATE rejection SET decided_at = decided_at - interval '61 s'",
        )
        .await;
        let persisted = shop.persist_dead(&one_more, &dead).await.unwrap();
        assert_eq!(persisted.issued, 1);
        shop.assert_consistent().await;
    }
}

#[tokio::test]
async fn a_parked_user_gets_no_second_slot() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a"]);
    let dead = reservation(&record, 0);
    shop.persist_dead(std::slice::from_ref(&record), &[dead]).await.unwrap();
    let mut same = shop.record(&["a"]);
    same.record.claims = record.record.claims;
    let persisted = shop.persist(&[same, shop.record(&["a"])]).await;
    assert_eq!(persisted.issued, 0);
    assert_eq!(rejected(&persisted), [("a", Reason::AlreadyIssued)]);
    let twice = shop.record(&["b", "b"]);
    let dead = [reservation(&twice, 0), reservation(&twice, 1)];
    let persisted = shop.persist_dead(&[twice], &dead).await.unwrap();
    assert_eq!(persisted.parked, 1);
    assert_eq!(rejected(&persisted), [("b", Reason::AlreadyIssued)]);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_replayed_claim_becomes_a_coupon_once() {
    let shop = Shop::open(1).await;
    let record = shop.record(&["a"]);
    let request = record.record.claims[0].request_id;
    let dead = reservation(&record, 0);
    shop.persist_dead(&[record], std::slice::from_ref(&dead)).await.unwrap();
    let replays = futures::future::join_all((0..5).map(|_| shop.database.replay_parked(shop.campaign.id, &dead))).await;
    let replays: Vec<Replay> = replays.into_iter().map(Result::unwrap).collect();
    assert_eq!(replays.iter().filter(|replay| **replay == Replay::Issued).count(), 1);
    assert_eq!(replays.iter().filter(|replay| **replay == Replay::NotFound).count(), 4);
    assert_eq!(shop.coupon_of("a").await.unwrap().id, request);
    assert_eq!(shop.database.outbox_len().await.unwrap(), 1);
    assert_eq!(shop.database.parked(None).await.unwrap(), []);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_replay_never_gives_a_second_coupon() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a"]);
    let dead = reservation(&record, 0);
    shop.persist_dead(&[record], std::slice::from_ref(&dead)).await.unwrap();
    // As after a restore from an older copy.
    shop.execute(
        "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at) \
         SELECT gen_random_uuid(), id, 'a', 'TEST-1', 'abcdefgh-1.0', now() FROM campaign; \
         UPDATE campaign SET issued = issued + 1",
    )
    .await;
    let replay = shop.database.replay_parked(shop.campaign.id, &dead).await.unwrap();
    assert_eq!(replay, Replay::AlreadyIssued);
    assert_eq!(shop.database.parked(None).await.unwrap().len(), 1);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_discarded_claim_stays_until_its_release_is_confirmed() {
    let shop = Shop::open(1).await;
    let record = shop.record(&["a"]);
    let batch = record.record.batch.clone();
    let request = record.record.claims[0].request_id;
    let dead = reservation(&record, 0);
    let id = shop.campaign.id;
    shop.persist_dead(&[record], std::slice::from_ref(&dead)).await.unwrap();
    assert!(shop.database.discard_parked(id, &dead).await.unwrap());
    assert!(!shop.database.discard_parked(id, &dead).await.unwrap());
    assert_eq!(shop.database.replay_parked(id, &dead).await.unwrap(), Replay::NotFound);
    assert_eq!(
        shop.database.rejection(request, &user("a")).await.unwrap(),
        Some(Reason::Discarded)
    );
    assert_eq!(
        shop.database.rejected_claims(id, &[batch]).await.unwrap(),
        [(user("a"), dead.clone())]
    );
    // The slot is free at once.
    assert_eq!(shop.persist(&[shop.record(&["b"])]).await.issued, 1);

    let discarded = shop.database.discarded().await.unwrap();
    assert_eq!(discarded.len(), 1);
    assert!(discarded[0].discarded);
    shop.database.forget_parked(id, &[dead]).await.unwrap();
    assert_eq!(shop.database.discarded().await.unwrap(), []);
    shop.assert_consistent().await;
}
