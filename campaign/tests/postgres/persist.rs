use std::collections::{HashMap, HashSet};

use campaign::{
    event::EventType,
    identity::{CampaignId, Epoch, RequestId},
    name::CampaignName,
    postgres::{
        batch::BatchOutcome,
        campaign::CampaignTerms,
        consumed::Life,
        coupon::CouponStatus,
        database::DatabaseError,
        persist::{Advance, PersistError, PersistRequest, Persisted, Reason},
    },
};
use sqlx::Connection;
use uuid::Uuid;

use crate::shop::{Shop, TOPIC, rejected, terms, user};

fn advance(partition: i32, from: i64, to: i64) -> Advance {
    Advance {
        partition,
        from,
        to,
        life: Life::default(),
    }
}

#[tokio::test]
async fn a_stored_claim_becomes_a_coupon_with_its_event() {
    let shop = Shop::open_with(&CampaignTerms {
        valid_for_ms: Some(3_600_000),
        ..terms(10)
    })
    .await;
    let record = shop.record(&["a", "b"]);
    let request = record.record.claims[0].request_id;
    let persisted = shop
        .persist_with(std::slice::from_ref(&record), 5, &HashMap::new(), &[advance(0, 0, 1)])
        .await
        .unwrap();
    assert_eq!((persisted.issued, persisted.parked), (2, 0));
    assert_eq!(persisted.decided, std::slice::from_ref(&record.record.batch));
    assert_eq!(rejected(&persisted), []);

    let coupon = shop.database.coupon(request).await.unwrap().unwrap();
    assert_eq!((coupon.user.as_str(), coupon.status), ("a", CouponStatus::Issued));
    assert_eq!(coupon.reservation, crate::shop::reservation(&record, 0));
    assert_eq!(coupon.campaign_name, shop.campaign.name);
    assert!(
        coupon.code.starts_with("TEST-") && coupon.code.len() == 18,
        "{}",
        coupon.code
    );
    let valid = coupon.valid_until.unwrap().duration_since(coupon.issued_at);
    assert_eq!(valid.as_millis(), 3_600_000);

    let events = shop.database.outbox_next(10).await.unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].event.event_type, EventType::Issued);
    assert_eq!(events[0].event.event_id, EventType::Issued.event_id(request));
    assert_eq!(events[0].event.occurred_at, coupon.issued_at.as_millisecond());
    let row = shop.now().await;
    assert_eq!((row.issued, row.fence), (2, 5));
    assert_eq!(shop.database.consumed(TOPIC).await.unwrap(), HashMap::from([(0, 1)]));
    let batch = record.record.batch;
    assert_eq!(
        shop.database
            .decided_batches(shop.campaign.id, std::slice::from_ref(&batch))
            .await
            .unwrap(),
        HashMap::from([(batch, BatchOutcome::Stored)])
    );
}

#[tokio::test]
async fn there_are_never_more_rows_than_the_quantity() {
    for (quantity, users, issued) in [(0, 1, 0), (1, 2, 1), (3, 200, 3)] {
        let shop = Shop::open(quantity).await;
        let names: Vec<String> = (0..users).map(|n| format!("u{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let persisted = shop.persist(&[shop.record(&names)]).await;
        assert_eq!(persisted.issued, issued);
        let refused = rejected(&persisted);
        assert_eq!(refused.len() as u64, users - issued);
        assert!(refused.iter().all(|(_, reason)| *reason == Reason::OutOfStock));
        // In order: those who came first have the coupons.
        assert!(refused.iter().all(|(name, _)| !names[..issued as usize].contains(name)));
        shop.assert_consistent().await;
    }
}

#[tokio::test]
async fn after_a_commit_whose_answer_was_lost_all_is_decided_already() {
    let shop = Shop::open(10).await;
    let records = [shop.record(&["a", "b"]), shop.record(&["c"])];
    let advances = [advance(0, 0, 2)];
    shop.persist_with(&records, 1, &HashMap::new(), &advances)
        .await
        .unwrap();

    let again = shop.persist(&records).await;
    assert_eq!((again.issued, again.decided.len()), (0, 0));
    assert_eq!(again.already_decided.len(), 2);
    let moved = shop.persist_with(&records, 1, &HashMap::new(), &advances).await;
    assert!(
        matches!(
            moved,
            Err(PersistError::Moved {
                partition: 0,
                expected: 0,
                stored: 2
            })
        ),
        "{moved:?}"
    );
    assert_eq!(shop.database.outbox_len().await.unwrap(), 3);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_holder_keeps_his_coupon_whatever_comes_later() {
    let shop = Shop::open(10).await;
    let first = shop.record(&["a"]);
    shop.persist(std::slice::from_ref(&first)).await;

    // The same request in another batch is his own.
    let mut same = shop.record(&["a"]);
    same.record.claims[0].request_id = first.record.claims[0].request_id;
    let persisted = shop.persist(&[same]).await;
    assert_eq!((persisted.issued, rejected(&persisted)), (0, vec![]));

    // Another request is not.
    let other = shop.record(&["a", "b"]);
    let batch = other.record.batch.clone();
    let request = other.record.claims[0].request_id;
    let persisted = shop.persist(&[other]).await;
    assert_eq!(persisted.issued, 1);
    assert_eq!(rejected(&persisted), [("a", Reason::AlreadyIssued)]);
    assert_eq!(
        shop.database.rejection(request, &user("a")).await.unwrap(),
        Some(Reason::AlreadyIssued)
    );
    let released = shop.database.rejected_claims(shop.campaign.id, &[batch]).await.unwrap();
    assert_eq!(released.len(), 1);
    assert_eq!(released[0].0, user("a"));
    shop.assert_consistent().await;
}

#[tokio::test]
async fn room_that_a_repeat_leaves_goes_to_the_next_one() {
    let shop = Shop::open(2).await;
    shop.persist(&[shop.record(&["a"])]).await;
    let persisted = shop.persist(&[shop.record(&["a", "b", "c"])]).await;
    assert_eq!(persisted.issued, 1);
    assert_eq!(
        HashSet::<_>::from_iter(rejected(&persisted)),
        HashSet::from([("a", Reason::AlreadyIssued), ("c", Reason::OutOfStock)])
    );
    assert!(shop.coupon_of("b").await.is_some());
}

#[tokio::test]
async fn one_user_twice_in_a_transaction_gets_one_coupon() {
    let shop = Shop::open(10).await;
    let record = shop.record(&["a", "a", "b"]);
    let later = shop.record(&["b", "c"]);
    let persisted = shop.persist(&[record, later]).await;
    assert_eq!(persisted.issued, 3);
    assert_eq!(
        rejected(&persisted),
        [("a", Reason::AlreadyIssued), ("b", Reason::AlreadyIssued)]
    );
    shop.assert_consistent().await;
}

#[tokio::test]
async fn one_batch_in_two_records_is_decided_once() {
    let shop = Shop::open(10).await;
    let first = shop.record(&["a"]);
    let mut repeat = first.clone();
    repeat.offset += 1;
    let persisted = shop.persist(&[first, repeat]).await;
    assert_eq!((persisted.issued, persisted.decided.len()), (1, 1));
    assert!(persisted.already_decided.is_empty());
}

#[tokio::test]
async fn a_request_that_is_another_users_coupon_is_refused() {
    let shop = Shop::open(10).await;
    let first = shop.record(&["a"]);
    let mut stolen = shop.record(&["b"]);
    stolen.record.claims[0].request_id = first.record.claims[0].request_id;
    shop.persist(&[first]).await;
    let persisted = shop.persist(&[stolen]).await;
    assert_eq!(rejected(&persisted), [("b", Reason::AlreadyIssued)]);
}

#[tokio::test]
async fn claims_of_an_archived_campaign_are_gone_and_the_new_ones_stock_is_untouched() {
    let shop = Shop::open(1).await;
    let record = shop.record(&["a"]);
    shop.database
        .archive_campaign(shop.campaign.id, shop.campaign.revision)
        .await
        .unwrap();
    let new = shop
        .database
        .create_campaign(&shop.campaign.name, &terms(1))
        .await
        .unwrap();
    let persisted = shop.persist(&[record]).await;
    assert_eq!(rejected(&persisted), [("a", Reason::CampaignGone)]);
    assert_eq!(shop.now().await, new);
}

#[tokio::test]
async fn a_campaign_applied_again_goes_on_with_its_holders() {
    let shop = Shop::open(2).await;
    shop.persist(&[shop.record(&["a"])]).await;
    let waiting = shop.record(&["b", "a"]);
    let again = shop
        .database
        .create_campaign(&shop.campaign.name, &terms(2))
        .await
        .unwrap();
    assert_eq!((again.id, again.issued), (shop.campaign.id, 1));
    let persisted = shop.persist(&[waiting]).await;
    assert_eq!(persisted.issued, 1);
    assert_eq!(rejected(&persisted), [("a", Reason::AlreadyIssued)]);
}

#[tokio::test]
async fn claims_of_a_campaign_that_was_never_known_are_gone() {
    let mut shop = Shop::open(1).await;
    shop.campaign.id = CampaignId(Uuid::now_v7());
    let record = shop.record(&["a"]);
    let batch = record.record.batch.clone();
    let persisted = shop.persist(&[record]).await;
    assert_eq!(persisted.decided, [batch]);
    assert_eq!(rejected(&persisted), [("a", Reason::CampaignGone)]);
}

#[tokio::test]
async fn who_lost_the_lock_writes_nothing() {
    let shop = Shop::open(10).await;
    let none = HashMap::new();
    shop.persist_with(&[shop.record(&["a"])], 7, &none, &[]).await.unwrap();
    let late = [shop.record(&["b"])];
    let fenced = shop.persist_with(&late, 6, &none, &[advance(0, 0, 9)]).await;
    assert!(
        matches!(fenced, Err(PersistError::Fenced { token: 6, fence: 7, .. })),
        "{fenced:?}"
    );
    assert_eq!(shop.count("batch").await, 1);
    assert_eq!(shop.database.consumed(TOPIC).await.unwrap(), HashMap::new());
    assert_eq!(shop.persist_with(&late, 7, &none, &[]).await.unwrap().issued, 1);
}

/// The lock in Redis may be lost before the commit: the campaign's row holds.
#[tokio::test]
async fn workers_that_persist_at_once_stay_within_the_quantity() {
    let shop = Shop::open(50).await;
    let all: Vec<_> = (0..8)
        .map(|worker| {
            let names: Vec<String> = (0..20).map(|n| format!("w{worker}-{n}")).collect();
            shop.record(&names.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .collect();
    // Every record by two workers, as after a rebalance.
    let runs = all
        .iter()
        .chain(&all)
        .map(|record| shop.persist(std::slice::from_ref(record)));
    let persisted = futures::future::join_all(runs).await;
    assert_eq!(persisted.iter().map(|persisted| persisted.issued).sum::<u64>(), 50);
    assert_eq!(
        persisted.iter().map(|persisted| persisted.decided.len()).sum::<usize>(),
        8
    );
    assert_eq!(shop.count("coupon").await, 50);
    assert_eq!(shop.database.outbox_len().await.unwrap(), 50);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn consumed_moves_only_from_the_offset_that_was_read() {
    let shop = Shop::open(10).await;
    let none = HashMap::new();
    let moves = [advance(2, 0, 3), advance(0, 0, 5)];
    shop.persist_with(&[shop.record(&["a"])], 1, &none, &moves)
        .await
        .unwrap();
    let refused = shop
        .persist_with(&[shop.record(&["b"])], 1, &none, &[advance(0, 5, 6), advance(2, 2, 4)])
        .await;
    assert!(
        matches!(
            refused,
            Err(PersistError::Moved {
                partition: 2,
                expected: 2,
                stored: 3
            })
        ),
        "{refused:?}"
    );
    assert_eq!(shop.count("coupon").await, 1);
    shop.database.advance(TOPIC, &[advance(0, 5, 6)], &[]).await.unwrap();
    assert!(shop.database.advance(TOPIC, &[advance(1, 4, 6)], &[]).await.is_err());
    assert_eq!(
        shop.database.consumed(TOPIC).await.unwrap(),
        HashMap::from([(0, 6), (2, 3)])
    );
    assert_eq!(shop.database.consumed("another").await.unwrap(), HashMap::new());
}

#[tokio::test]
async fn of_many_that_move_one_partition_one_wins() {
    let shop = Shop::open(1).await;
    let moves = [advance(0, 0, 1), advance(1, 0, 1)];
    let turned = [advance(1, 0, 1), advance(0, 0, 1)];
    let tries = (0..10).map(|n| {
        let moves = if n % 2 == 0 { &moves } else { &turned };
        shop.database.advance(TOPIC, moves, &[])
    });
    let done = futures::future::join_all(tries).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    for refused in done.iter().filter_map(|done| done.as_ref().err()) {
        assert!(matches!(refused, PersistError::Moved { stored: 1, .. }), "{refused}");
    }
}

#[tokio::test]
async fn a_record_past_the_cut_of_a_later_epoch_is_stale() {
    let shop = Shop::open(10).await;
    let old = shop
        .database
        .raise_epoch(shop.campaign.id)
        .await
        .unwrap()
        .unwrap()
        .epoch;
    let new = shop
        .database
        .raise_epoch(shop.campaign.id)
        .await
        .unwrap()
        .unwrap()
        .epoch;
    shop.execute(&format!(
        "INSERT INTO epoch_cut SELECT id, {}, 0, 10 FROM campaign",
        new.0
    ))
    .await;
    let at = |name: &str, epoch: Epoch, offset: i64| {
        let mut record = shop.record(&[name]);
        record.record.epoch = epoch;
        record.offset = offset;
        record
    };
    let stale = at("late", old, 10);
    let batch = stale.record.batch.clone();
    let persisted = shop.persist(&[at("before", old, 9), stale, at("new", new, 11)]).await;
    assert_eq!((persisted.issued, persisted.decided.len()), (2, 3));
    assert_eq!(rejected(&persisted), [("late", Reason::StaleEpoch)]);
    let decided = shop
        .database
        .decided_batches(shop.campaign.id, std::slice::from_ref(&batch));
    assert_eq!(decided.await.unwrap(), HashMap::from([(batch, BatchOutcome::Stale)]));
}

#[tokio::test]
async fn an_epoch_without_a_cut_makes_nothing_stale() {
    let shop = Shop::open(10).await;
    shop.database.raise_epoch(shop.campaign.id).await.unwrap();
    let persisted = shop.persist(&[shop.record(&["a"])]).await;
    assert_eq!(persisted.issued, 1);
}

#[tokio::test]
async fn a_code_that_is_taken_is_drawn_again() {
    let shop = Shop::open(10).await;
    shop.persist(&[shop.record(&["a"])]).await;
    // The next code that is drawn is that of the first coupon, once.
    shop.execute(
        "CREATE SEQUENCE draws; CREATE FUNCTION draw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('draws') = 1 THEN NEW.code := (SELECT code FROM coupon LIMIT 1); END IF; RETURN NEW; END $$; \
         CREATE TRIGGER draw BEFORE INSERT ON coupon FOR EACH ROW EXECUTE FUNCTION draw()",
    )
    .await;
    let persisted = shop.persist(&[shop.record(&["b", "c"])]).await;
    assert_eq!((persisted.issued, rejected(&persisted)), (2, vec![]));
    assert_eq!(shop.count("(SELECT DISTINCT code FROM coupon) AS codes").await, 3);
    assert_eq!(shop.database.outbox_len().await.unwrap(), 3);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn data_that_the_database_refuses_is_found_without_writing() {
    let shop = Shop::open(10).await;
    shop.execute("ALTER TABLE coupon ADD CHECK (user_id <> 'poison')").await;
    let record = shop.record(&["a", "poison", "b"]);
    let all = shop
        .persist_with(std::slice::from_ref(&record), 1, &HashMap::new(), &[])
        .await;
    assert!(
        matches!(all, Err(PersistError::Database(DatabaseError::DataRefused { .. }))),
        "{all:?}"
    );
    let tried = async |claims: &[usize]| shop.database.try_rows(&record.record, claims).await;
    assert!(matches!(
        tried(&[0, 1, 2]).await,
        Err(DatabaseError::DataRefused { .. })
    ));
    assert!(matches!(tried(&[1]).await, Err(DatabaseError::DataRefused { .. })));
    tried(&[0, 2]).await.unwrap();
    assert_eq!(shop.count("coupon").await, 0);
    assert_eq!(shop.database.outbox_len().await.unwrap(), 0);
}

#[tokio::test]
async fn a_campaign_whose_row_is_locked_does_not_hold_up_the_others() {
    let shop = Shop::open(10).await;
    let mut holder = shop.connection().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM campaign FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let name = CampaignName::new("shop", "other").unwrap();
    let other = shop.database.create_campaign(&name, &terms(5)).await.unwrap();
    let none = HashMap::new();
    let blocked = [shop.record(&["a"])];
    let mut free = shop.record(&["a"]);
    free.record.id = other.id;
    let free = [free];
    let moves = [advance(0, 0, 1)];
    let first = shop.persist_with(&blocked, 1, &none, &moves);
    let request = PersistRequest {
        topic: TOPIC,
        campaign: other.id,
        token: 1,
        records: &free,
        dead: &none,
        advances: &[advance(1, 0, 1)],
        rests_on: &[],
    };
    let second = shop.database.persist(&request);
    tokio::pin!(first);
    tokio::select! {
        _ = &mut first => panic!("the row is locked"),
        persisted = second => assert_eq!(persisted.unwrap().issued, 1),
    }
    held.rollback().await.unwrap();
    assert_eq!(first.await.unwrap().issued, 1);
}

#[tokio::test]
async fn a_lock_that_hangs_is_an_error_to_try_again() {
    let shop = Shop::open(10).await;
    let mut holder = shop.connection().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM campaign FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let records = [shop.record(&["a"])];
    let hung = shop.persist_with(&records, 1, &HashMap::new(), &[]).await;
    assert!(
        matches!(hung, Err(PersistError::Database(DatabaseError::Unavailable { .. }))),
        "{hung:?}"
    );
    held.rollback().await.unwrap();
    assert_eq!(shop.persist(&records).await.issued, 1);
}

#[tokio::test]
async fn requests_that_are_not_there_are_not_there() {
    let shop = Shop::open(1).await;
    assert_eq!(shop.database.coupon(RequestId::fresh()).await.unwrap(), None);
    assert_eq!(
        shop.database.rejection(RequestId::fresh(), &user("a")).await.unwrap(),
        None
    );
    let none = shop.persist_with(&[], 1, &HashMap::new(), &[]).await.unwrap();
    assert_eq!(none, Persisted::default());
}
