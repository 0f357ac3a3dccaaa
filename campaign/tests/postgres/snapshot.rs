use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use campaign::{
    identity::{Epoch, Instance},
    postgres::{
        campaign::{CampaignTerms, OnCancel},
        consumed::Life,
        persist::Advance,
        snapshot::{Snapshot, SnapshotStart},
    },
    redis::state::RebuiltEntry,
};

use testkit::eventually::eventually;

use crate::shop::{Shop, TOPIC, reservation, terms};

async fn begin(shop: &Shop, epoch: Epoch, cut: &[(i32, i64)]) -> Option<Box<Snapshot>> {
    let cut = cut.iter().copied().collect();
    match shop
        .database
        .begin_snapshot(TOPIC, shop.campaign.id, epoch, &cut)
        .await
        .unwrap()
    {
        SnapshotStart::Open(snapshot) => Some(snapshot),
        SnapshotStart::Superseded => None,
    }
}

async fn raise(shop: &Shop) -> Epoch {
    shop.database
        .raise_epoch(shop.campaign.id)
        .await
        .unwrap()
        .unwrap()
        .epoch
}

/// `+` holds a slot, `-` was canceled and gave it back.
async fn entries(snapshot: &mut Snapshot, page: usize) -> Vec<String> {
    let mut entries = Vec::new();
    loop {
        let next = snapshot.next_entries(page).await.unwrap();
        if next.is_empty() {
            return entries;
        }
        assert!(next.len() <= page);
        entries.extend(next.iter().map(|entry| match entry {
            RebuiltEntry::Holder(user, ..) => format!("+{user}"),
            RebuiltEntry::Canceled(user, _) => format!("-{user}"),
            RebuiltEntry::Pending(..) => panic!("no row is pending"),
        }));
    }
}

#[tokio::test]
async fn every_row_that_stands_for_a_slot_is_an_entry() {
    let shop = Shop::open(10).await;
    let record = shop.record(&["a", "b", "c", "dead", "gone"]);
    let dead = [reservation(&record, 3), reservation(&record, 4)];
    let claims = record.record.claims.clone();
    shop.persist_dead(&[record], &dead).await.unwrap();
    shop.database.discard_parked(shop.campaign.id, &dead[1]).await.unwrap();
    shop.database.cancel_coupon(claims[0].request_id).await.unwrap();
    // The policy changes: what was canceled before keeps what it did.
    let retain = CampaignTerms {
        on_cancel: OnCancel::Retain,
        ..terms(10)
    };
    shop.database
        .set_terms(shop.campaign.id, &retain, 1, 2, None)
        .await
        .unwrap();
    shop.database.cancel_coupon(claims[1].request_id).await.unwrap();

    let epoch = raise(&shop).await;
    for page in [1, 2, 100] {
        let mut snapshot = begin(&shop, epoch, &[]).await.unwrap();
        assert_eq!(entries(&mut snapshot, page).await, ["-a", "+b", "+c", "+dead"]);
        assert_eq!((snapshot.campaign().issued, snapshot.campaign().parked), (2, 1));
    }
}

#[tokio::test]
async fn an_older_epoch_is_superseded() {
    let shop = Shop::open(1).await;
    let old = raise(&shop).await;
    let new = raise(&shop).await;
    assert!(begin(&shop, old, &[(0, 5)]).await.is_none());
    assert_eq!(shop.count("epoch_cut").await, 0);
    assert!(begin(&shop, new, &[(0, 5)]).await.is_some());
    shop.database
        .archive_campaign(shop.campaign.id, shop.campaign.revision)
        .await
        .unwrap();
    assert!(begin(&shop, new, &[(0, 5)]).await.is_none());
}

#[tokio::test]
async fn the_cut_is_stored_only_by_the_commit() {
    let shop = Shop::open(1).await;
    let first = raise(&shop).await;
    drop(begin(&shop, first, &[(0, 3)]).await.unwrap());
    let snapshot = begin(&shop, first, &[(0, 4), (1, 9)]).await.unwrap();
    snapshot.commit().await.unwrap();
    let second = raise(&shop).await;
    let snapshot = begin(&shop, second, &[(0, 6)]).await.unwrap();
    assert_eq!(
        snapshot.cuts(),
        &HashMap::from([
            (first, HashMap::from([(0, 4), (1, 9)])),
            (second, HashMap::from([(0, 6)])),
        ])
    );
}

#[tokio::test]
async fn a_snapshot_shows_one_moment_while_workers_persist() {
    let shop = Shop::open(100).await;
    let epoch = raise(&shop).await;
    let advance = |from| {
        [Advance {
            partition: 0,
            from,
            to: from + 1,
            life: Life::default(),
        }]
    };
    let none = HashMap::new();
    let first = [shop.record(&["a", "b"])];
    shop.persist_with(&first, 1, &none, &advance(0)).await.unwrap();
    let mut snapshot = begin(&shop, epoch, &[(0, 2)]).await.unwrap();

    let later = [shop.record(&["aa", "c"])];
    let moves = advance(1);
    let late = shop.persist_with(&later, 1, &none, &moves);
    tokio::pin!(late);
    let batches = [first[0].record.batch.clone(), Instance::random().batch(1)];
    let read = async {
        let entries = entries(&mut snapshot, 1).await;
        (entries, snapshot.decided(&batches).await.unwrap())
    };
    tokio::select! {
        _ = &mut late => panic!("it must wait for the snapshot"),
        (entries, decided) = read => {
            assert_eq!(entries, ["+a", "+b"]);
            assert_eq!(decided, [batches[0].clone()].into());
        }
    }
    assert_eq!(snapshot.consumed(), &HashMap::from([(0, 1)]));
    snapshot.commit().await.unwrap();
    assert_eq!(late.await.unwrap().issued, 2);
}

/// Waits until the session of the open transaction has run three statements, and calls `meanwhile` again and again.
async fn three_statements(shop: &Shop, mut meanwhile: impl FnMut()) {
    let mut watcher = shop.connection().await;
    let mut starts = HashSet::new();
    let limit = Duration::from_secs(25);
    eventually(limit, "three statements of an open transaction", async || {
        meanwhile();
        let start: Option<String> = sqlx::query_scalar(
            "SELECT max(query_start)::text FROM pg_stat_activity \
             WHERE datname = current_database() AND state = 'idle in transaction'",
        )
        .fetch_one(&mut watcher)
        .await
        .unwrap();
        starts.extend(start);
        starts.len() >= 3
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_that_waits_for_something_long_is_not_idle() {
    let shop = Shop::open(1).await;
    let epoch = raise(&shop).await;
    let mut snapshot = begin(&shop, epoch, &[]).await.unwrap();
    snapshot.kept_while(three_statements(&shop, || ())).await.unwrap();

    // Nor where what it waits for comes bit by bit.
    let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
    let trickle = async move { three_statements(&shop, || sent.send(()).unwrap()).await };
    let reading = async { while snapshot.kept_while(received.recv()).await.unwrap().is_some() {} };
    tokio::join!(trickle, reading);
    snapshot.commit().await.unwrap();
}
