//! Reserving: who gets a slot and who does not.

use campaign::{
    identity::RequestId,
    redis::state::{
        Marker, MarkerAnswer, Refusal, ReserveAnswer,
        ReserveOutcome::{Duplicate, InFlight, Settled, SoldOut, Success},
        StateAnswer, Transition,
    },
};
use jiff::{SignedDuration, Timestamp};

use crate::fixture::{EPOCH, Fixture, configuration, raw, user};

#[tokio::test]
async fn quantity_0_gives_none_and_quantity_1_exactly_one() {
    let none = Fixture::shared().await.open(0).await;
    assert_eq!(none.claim(&["a"]).await.outcomes, [SoldOut]);
    assert_eq!(none.counts().await, (0, 0, 0));

    let one = Fixture::shared().await.open(1).await;
    assert_eq!(one.claim(&["a", "b"]).await.outcomes, [Success, SoldOut]);
    assert_eq!(one.counts().await, (0, 1, 1));
}

#[tokio::test]
async fn repeated_clicks_of_one_user_use_one_slot() {
    let fixture = Fixture::shared().await.open(10).await;
    let clicks = fixture.claim(&["a"; 50]).await;
    assert_eq!(clicks.outcomes[0], Success);
    assert!(clicks.outcomes[1..].iter().all(|&o| o == Duplicate(clicks.request(0))));

    let others = fixture.claim(&["b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]).await;
    assert_eq!(others.outcomes[..9], [Success; 9]);
    assert_eq!(others.outcomes[9], SoldOut);
}

#[tokio::test]
async fn a_holder_is_a_duplicate_also_when_sold_out() {
    let fixture = Fixture::shared().await.open(1).await;
    let first = fixture.claim(&["a"]).await;
    assert_eq!(
        fixture.claim(&["a", "b"]).await.outcomes,
        [Duplicate(first.request(0)), SoldOut]
    );
}

#[tokio::test]
async fn the_same_request_is_in_flight_until_its_batch_is_settled() {
    let fixture = Fixture::shared().await.open(10).await;
    let first = fixture.claim(&["a"]).await;
    let again = [(user("a"), first.request(0))];
    assert_eq!(fixture.reserve(&fixture.batch(), &again).await, [InFlight]);

    let settled = fixture
        .store
        .settle(&fixture.campaign, std::slice::from_ref(&first.batch))
        .await;
    assert_eq!(settled.unwrap(), Transition::Done(1));
    assert_eq!(fixture.reserve(&fixture.batch(), &again).await, [Settled]);
    assert_eq!(fixture.counts().await, (9, 1, 0));
}

#[tokio::test]
async fn the_same_request_twice_in_one_call_is_in_flight() {
    let fixture = Fixture::shared().await.open(10).await;
    let claim = (user("a"), RequestId::fresh());
    let outcomes = fixture.reserve(&fixture.batch(), &[claim.clone(), claim]).await;
    assert_eq!(outcomes, [Success, InFlight]);
    assert_eq!(fixture.counts().await, (9, 1, 1));
}

#[tokio::test]
async fn a_canceled_user_never_claims_again() {
    let fixture = Fixture::shared().await.open(2).await;
    let first = fixture.claim(&["a"]).await;
    let restock = || {
        fixture
            .store
            .restock(&fixture.campaign, &first.claims[0].0, first.request(0), EPOCH)
    };
    assert_eq!(restock().await.unwrap(), Transition::Done(1));
    assert_eq!(restock().await.unwrap(), Transition::Done(0));
    assert_eq!(fixture.counts().await, (2, 0, 0));
    assert_eq!(fixture.claim(&["a"]).await.outcomes, [Duplicate(first.request(0))]);
    let again = fixture.reserve(&fixture.batch(), &first.claims).await;
    assert_eq!(again, [Duplicate(first.request(0))]);
    let marker = fixture.store.marker(&fixture.campaign, &user("a")).await.unwrap();
    assert_eq!(marker, MarkerAnswer::Present(Some(Marker::Canceled(first.request(0)))));

    let released = fixture.store.release(&fixture.campaign, &[first.reservation(0)]).await;
    assert_eq!(
        released.unwrap(),
        Transition::Done(0),
        "a canceled marker is left alone"
    );
}

#[tokio::test]
async fn an_old_reservation_never_frees_a_newer_one() {
    let fixture = Fixture::shared().await.open(1).await;
    let old = fixture.claim(&["a"]).await;
    let claims = [old.reservation(0)];
    let release = || fixture.store.release(&fixture.campaign, &claims);
    assert_eq!(release().await.unwrap(), Transition::Done(1));
    assert_eq!(release().await.unwrap(), Transition::Done(0));

    let newer = fixture.reserve(&fixture.batch(), &old.claims).await;
    assert_eq!(newer, [Success], "a new attempt of the same request");
    assert_eq!(release().await.unwrap(), Transition::Done(0));
    assert_eq!(fixture.counts().await, (0, 1, 1));
}

#[tokio::test]
async fn the_window_and_the_pause_shut_the_door() {
    let fixture = Fixture::shared().await.open(1).await;
    let hour = SignedDuration::from_hours(1);
    let (past, future) = (Timestamp::now() - hour, Timestamp::now() + hour);
    let future = Timestamp::from_millisecond(future.as_millisecond()).unwrap();
    let refusals = [
        (Some(future), None, false, Refusal::NotOpenYet(future)),
        (Some(future), None, true, Refusal::NotOpenYet(future)),
        (Some(past), Some(past), false, Refusal::Closed),
        (None, Some(past), true, Refusal::Closed),
        (Some(past), Some(future), true, Refusal::Paused),
    ];
    for (opens_at, closes_at, paused, refusal) in refusals {
        let mut wanted = configuration(1);
        (wanted.opens_at, wanted.closes_at, wanted.paused) = (opens_at, closes_at, paused);
        fixture.store.configure(&fixture.campaign, &wanted).await.unwrap();
        let claims = [(user("a"), RequestId::fresh())];
        let answer = fixture
            .store
            .reserve(&fixture.campaign, &fixture.batch(), &claims)
            .await;
        assert_eq!(answer.unwrap(), ReserveAnswer::Refused(refusal));
    }
    fixture
        .store
        .configure(&fixture.campaign, &configuration(1))
        .await
        .unwrap();
    assert_eq!(fixture.claim(&["a"]).await.outcomes, [Success]);
}

#[tokio::test]
async fn a_lost_list_of_pending_batches_is_not_an_empty_one() {
    for lost in [0, 1] {
        let fixture = Fixture::shared().await.open(10).await;
        let claimed = fixture.claim(&["a"]).await;
        let keys = fixture.keys();
        let key = [&keys.pending, &keys.pending_claims][lost];
        let deleted: i64 = redis::cmd("DEL").arg(key).query_async(&mut raw().await).await.unwrap();
        assert_eq!(deleted, 1);

        // Read as empty, the first would make this a SUCCESS without Kafka, and nobody would sweep the claim.
        let (store, campaign) = (&fixture.store, &fixture.campaign);
        let again = store
            .reserve(campaign, &fixture.batch(), &claimed.claims)
            .await
            .unwrap();
        assert_eq!(again, ReserveAnswer::Refused(Refusal::NotInitialized));
        assert_eq!(store.expired_batches(campaign, 0, 10).await.unwrap(), None);
        assert_eq!(store.state(campaign).await.unwrap(), StateAnswer::NotInitialized);
        let settled = store
            .settle(campaign, std::slice::from_ref(&claimed.batch))
            .await
            .unwrap();
        assert_eq!(settled, Transition::NotInitialized);
    }
}
