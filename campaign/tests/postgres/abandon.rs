use std::collections::HashMap;

use campaign::{
    identity::{RequestId, Reservation, UserId},
    postgres::{
        batch::{Abandon, BatchOutcome},
        consumed::Life,
        persist::{Advance, LocatedRecord, Reason},
    },
};

use crate::shop::{Shop, TOPIC, user};

fn claims(record: &LocatedRecord) -> Vec<(UserId, RequestId, Reservation)> {
    let record = &record.record;
    record
        .claims
        .iter()
        .map(|claim| (claim.user_id.clone(), claim.request_id, record.reservation(claim)))
        .collect()
}

pub async fn abandon(shop: &Shop, record: &LocatedRecord, seen: &[(i32, i64)]) -> Abandon {
    let seen = seen.iter().copied().collect();
    shop.database
        .abandon(TOPIC, shop.campaign.id, &record.record.batch, &claims(record), &seen)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_record_that_comes_after_its_batch_was_abandoned_changes_nothing() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a", "b"]);
    assert_eq!(abandon(&shop, &record, &[]).await, Abandon::Abandoned);
    assert_eq!(abandon(&shop, &record, &[]).await, Abandon::Abandoned);
    let persisted = shop.persist(std::slice::from_ref(&record)).await;
    assert_eq!((persisted.issued, persisted.already_decided.len()), (0, 1));
    let request = record.record.claims[0].request_id;
    assert_eq!(
        shop.database.rejection(request, &user("a")).await.unwrap(),
        Some(Reason::NotStored)
    );
    let released = shop
        .database
        .rejected_claims(shop.campaign.id, std::slice::from_ref(&record.record.batch))
        .await
        .unwrap();
    assert_eq!(released.len(), 2);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_batch_that_was_stored_is_not_abandoned() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a"]);
    shop.persist(std::slice::from_ref(&record)).await;
    assert_eq!(
        abandon(&shop, &record, &[]).await,
        Abandon::Decided(BatchOutcome::Stored)
    );
    assert_eq!(shop.count("rejection").await, 0);
}

#[tokio::test]
async fn sweeper_and_late_worker_at_once_agree() {
    let shop = Shop::open(100).await;
    for n in 0..20 {
        let record = shop.record(&[&format!("u{n}")]);
        let records = std::slice::from_ref(&record);
        let (persisted, abandoned) = tokio::join!(shop.persist(records), abandon(&shop, &record, &[]));
        match abandoned {
            Abandon::Abandoned => assert_eq!(persisted.issued, 0),
            Abandon::Decided(BatchOutcome::Stored) => assert_eq!(persisted.issued, 1),
            other => panic!("{other:?}"),
        }
    }
    shop.assert_consistent().await;
}

/// As after Postgres was put back: what the sweeper saw consumed is not consumed any more.
#[tokio::test]
async fn nothing_is_abandoned_when_consumed_is_behind_what_was_seen() {
    let shop = Shop::open(5).await;
    let record = shop.record(&["a"]);
    let moved = Advance {
        partition: 0,
        from: 0,
        to: 10,
        life: Life::default(),
    };
    shop.database.advance(TOPIC, &[moved], &[]).await.unwrap();
    assert_eq!(abandon(&shop, &record, &[(0, 11)]).await, Abandon::ConsumedBehind);
    assert_eq!(
        abandon(&shop, &record, &[(0, 10), (1, 1)]).await,
        Abandon::ConsumedBehind
    );
    let decided = shop
        .database
        .decided_batches(shop.campaign.id, std::slice::from_ref(&record.record.batch));
    assert_eq!(decided.await.unwrap(), HashMap::new());
    assert_eq!(shop.persist(std::slice::from_ref(&record)).await.issued, 1);
    let other = shop.record(&["b"]);
    assert_eq!(abandon(&shop, &other, &[(0, 10), (1, 0)]).await, Abandon::Abandoned);
}
