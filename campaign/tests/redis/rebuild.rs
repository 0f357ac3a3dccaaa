//! Rebuilding: the newest epoch alone writes, and nothing opens half built.

use campaign::{
    identity::{Epoch, RequestId},
    redis::state::{
        Appended, Configuration, Marker, MarkerAnswer, RebuildStep, RebuiltEntry, Refusal, ReserveAnswer,
        ReserveOutcome::{Duplicate, InFlight, SoldOut, Success},
        Transition,
    },
};

use crate::fixture::{EPOCH, Fixture, configuration, raw, user};

#[tokio::test]
async fn a_rebuilt_state_holds_its_holders_cancels_and_pending_claims() {
    let fixture = Fixture::shared().await;
    let (held, pending) = (fixture.batch(), fixture.batch());
    let (a, b, c) = (RequestId::fresh(), RequestId::fresh(), RequestId::fresh());
    let entries = [
        RebuiltEntry::Holder(user("a"), a, held.reservation(0)),
        RebuiltEntry::Canceled(user("b"), b),
        RebuiltEntry::Pending(user("c"), c, pending.reservation(0), 1_000),
    ];
    fixture.rebuild(&configuration(3), &entries).await;
    let numbers = fixture.numbers().await;
    assert_eq!(
        (numbers.taken, numbers.pending, numbers.oldest_pending_ms),
        (2, 1, Some(1_000))
    );
    assert_eq!(numbers.campaign, fixture.id);

    let batches = fixture
        .store
        .expired_batches(&fixture.campaign, 60_000, 10)
        .await
        .unwrap();
    assert_eq!(batches, Some(vec![pending.clone()]));
    let claims = fixture
        .store
        .claims_of(&fixture.campaign, std::slice::from_ref(&pending))
        .await
        .unwrap();
    assert_eq!(claims, Some(vec![(user("c"), c, pending.reservation(0))]));

    let again = [(user("a"), RequestId::fresh()), (user("b"), b), (user("c"), c)];
    assert_eq!(
        fixture.reserve(&fixture.batch(), &again).await,
        [Duplicate(a), Duplicate(b), InFlight]
    );
    assert_eq!(fixture.claim(&["d", "e"]).await.outcomes, [Success, SoldOut]);
}

#[tokio::test]
async fn an_older_epoch_writes_nothing_any_more() {
    let fixture = Fixture::shared().await.open(5).await;
    let (older, newer) = (Epoch(EPOCH.0 + 1), Epoch(EPOCH.0 + 2));
    let begin = |epoch| fixture.store.rebuild_begin(&fixture.campaign, fixture.id, epoch);
    assert_eq!(begin(older).await.unwrap(), RebuildStep::Done);
    // The first rebuilder is held up; a flush brings a second one.
    let mut raw = raw().await;
    redis::cmd("DEL")
        .arg(fixture.keys().meta)
        .exec_async(&mut raw)
        .await
        .unwrap();
    assert_eq!(begin(newer).await.unwrap(), RebuildStep::Done);

    let entry = |name: &str| [RebuiltEntry::Canceled(user(name), RequestId::fresh())];
    let append = async |epoch, name| {
        let entries = entry(name);
        fixture
            .store
            .rebuild_append(&fixture.campaign, epoch, &entries)
            .await
            .unwrap()
    };
    let commit = async |epoch, users| {
        let configuration = Configuration {
            epoch,
            ..configuration(5)
        };
        let rebuilt = fixture.rebuilt(&configuration, users);
        fixture.store.rebuild_commit(&fixture.campaign, &rebuilt).await.unwrap()
    };
    assert_eq!(append(older, "old").await, Appended::Superseded);
    assert_eq!(commit(older, 0).await, RebuildStep::Superseded);
    assert_eq!(begin(older).await.unwrap(), RebuildStep::Superseded);

    assert_eq!(append(newer, "new").await, Appended::Users(1));
    assert_eq!(
        commit(newer, 2).await,
        RebuildStep::Superseded,
        "fewer users than announced"
    );
    assert_eq!(commit(newer, 1).await, RebuildStep::Done);
    for epoch in [older, newer] {
        assert_eq!(begin(epoch).await.unwrap(), RebuildStep::Superseded, "it is open");
        assert_eq!(commit(epoch, 0).await, RebuildStep::Superseded);
    }
    assert_eq!(fixture.numbers().await.epoch, newer);
    let marker = fixture.store.marker(&fixture.campaign, &user("old")).await.unwrap();
    assert_eq!(marker, MarkerAnswer::Present(None));
}

#[tokio::test]
async fn the_door_is_shut_while_a_state_is_rebuilt() {
    let fixture = Fixture::shared().await.open(5).await;
    let before = fixture.claim(&["a"]).await;
    let next = Epoch(EPOCH.0 + 1);
    fixture
        .store
        .rebuild_begin(&fixture.campaign, fixture.id, next)
        .await
        .unwrap();

    let claims = [(user("b"), RequestId::fresh())];
    let reserved = fixture
        .store
        .reserve(&fixture.campaign, &fixture.batch(), &claims)
        .await;
    assert_eq!(reserved.unwrap(), ReserveAnswer::Refused(Refusal::Rebuilding));
    let (store, campaign) = (&fixture.store, &fixture.campaign);
    let released = store.release(campaign, &[before.reservation(0)]).await.unwrap();
    let settled = store
        .settle(campaign, std::slice::from_ref(&before.batch))
        .await
        .unwrap();
    let restocked = store
        .restock(campaign, &user("a"), before.request(0), EPOCH)
        .await
        .unwrap();
    assert_eq!([released, settled, restocked], [Transition::Rebuilding; 3]);
    assert_eq!(store.marker(campaign, &user("a")).await.unwrap(), MarkerAnswer::Unknown);
    assert_eq!(store.expired_batches(campaign, -1, 10).await.unwrap(), None);
    assert_eq!(
        store
            .claims_of(campaign, std::slice::from_ref(&before.batch))
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn more_holders_than_quantity_leave_nothing_free_and_nobody_out() {
    let fixture = Fixture::shared().await;
    let entries: Vec<_> = (0..2_500)
        .map(|n| {
            let request = RequestId::fresh();
            RebuiltEntry::Holder(user(&format!("u{n}")), request, fixture.batch().reservation(0))
        })
        .collect();
    fixture.rebuild(&configuration(10), &entries).await;
    let numbers = fixture.numbers().await;
    assert_eq!(
        (numbers.quantity, numbers.taken, numbers.available()),
        (2_500, 2_500, 0)
    );
    assert_eq!(fixture.claim(&["late"]).await.outcomes, [SoldOut]);
}

#[tokio::test]
async fn a_repeated_append_counts_nobody_twice() {
    let fixture = Fixture::shared().await;
    let (store, campaign) = (&fixture.store, &fixture.campaign);
    let request = RequestId::fresh();
    let held = fixture.batch().reservation(0);
    store.rebuild_begin(campaign, fixture.id, EPOCH).await.unwrap();
    let entries = [RebuiltEntry::Pending(user("a"), request, held.clone(), 1)];
    for new in [1, 0] {
        let appended = store.rebuild_append(campaign, EPOCH, &entries).await.unwrap();
        assert_eq!(appended, Appended::Users(new));
    }
    let rebuilt = fixture.rebuilt(&configuration(5), 1);
    assert_eq!(
        store.rebuild_commit(campaign, &rebuilt).await.unwrap(),
        RebuildStep::Done
    );
    assert_eq!(fixture.counts().await, (4, 1, 1));
    let marker = store.marker(campaign, &user("a")).await.unwrap();
    assert_eq!(marker, MarkerAnswer::Present(Some(Marker::Holds(request, held))));
}
