use campaign::{
    event::EventType,
    identity::RequestId,
    name::CampaignName,
    postgres::{
        campaign::{CampaignTerms, OnCancel},
        coupon::{Coupon, CouponKey, CouponStatus, Redemption},
        persist::Reason,
    },
};

use crate::shop::{Shop, rejected, terms, user};

async fn issue(shop: &Shop, name: &str) -> Coupon {
    assert_eq!(shop.persist(&[shop.record(&[name])]).await.issued, 1);
    shop.coupon_of(name).await.unwrap()
}

fn done(redemption: Redemption) -> Coupon {
    match redemption {
        Redemption::Done(coupon) => coupon,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_coupon_is_used_once_by_id_or_code() {
    let shop = Shop::open(5).await;
    let first = issue(&shop, "a").await;
    let second = issue(&shop, "b").await;
    let used = done(shop.database.use_coupon(&CouponKey::Id(first.id)).await.unwrap());
    assert_eq!(used.status, CouponStatus::Used);
    assert!(used.used_at.is_some());
    let by_code = CouponKey::Code(second.code.clone());
    assert_eq!(done(shop.database.use_coupon(&by_code).await.unwrap()).id, second.id);
    for again in [CouponKey::Id(first.id), CouponKey::Code(first.code.clone())] {
        let again = shop.database.use_coupon(&again).await.unwrap();
        assert_eq!(again, Redemption::WrongStatus(used.clone()));
    }
    let canceled = shop.database.cancel_coupon(first.id).await.unwrap();
    assert_eq!(canceled, Redemption::WrongStatus(used));
    for nobody in [CouponKey::Id(RequestId::fresh()), CouponKey::Code("TEST-0".to_owned())] {
        assert_eq!(shop.database.use_coupon(&nobody).await.unwrap(), Redemption::NotFound);
    }
    let nobody = shop.database.cancel_coupon(RequestId::fresh()).await.unwrap();
    assert_eq!(nobody, Redemption::NotFound);
    assert_eq!(shop.count("outbox WHERE type = 'COUPON_USED'").await, 2);
}

#[tokio::test]
async fn of_many_who_use_and_cancel_at_once_one_wins() {
    let shop = Shop::open(10).await;
    for n in 0..10 {
        let coupon = issue(&shop, &format!("u{n}")).await;
        let key = CouponKey::Id(coupon.id);
        let uses = futures::future::join_all((0..4).map(|_| shop.database.use_coupon(&key)));
        let cancels = futures::future::join_all((0..4).map(|_| shop.database.cancel_coupon(coupon.id)));
        let (uses, cancels) = tokio::join!(uses, cancels);
        let won = uses
            .into_iter()
            .chain(cancels)
            .filter(|redemption| matches!(redemption.as_ref().unwrap(), Redemption::Done(_)))
            .count();
        assert_eq!(won, 1);
        let events = format!("outbox WHERE coupon_id = '{}' AND type <> 'COUPON_ISSUED'", coupon.id);
        assert_eq!(shop.count(&events).await, 1);
    }
    shop.assert_consistent().await;
}

#[tokio::test]
async fn past_its_validity_a_coupon_is_neither_used_nor_canceled() {
    let shop = Shop::open_with(&CampaignTerms {
        valid_for_ms: Some(3_600_000),
        ..terms(5)
    })
    .await;
    let coupon = issue(&shop, "a").await;
    let other = issue(&shop, "b").await;
    done(shop.database.use_coupon(&CouponKey::Id(other.id)).await.unwrap());
    shop.execute("UPDATE coupon SET valid_until = now()").await;
    let key = CouponKey::Id(coupon.id);
    assert!(matches!(
        shop.database.use_coupon(&key).await.unwrap(),
        Redemption::Expired(_)
    ));
    assert!(matches!(
        shop.database.cancel_coupon(coupon.id).await.unwrap(),
        Redemption::Expired(_)
    ));
    let used = shop.database.use_coupon(&CouponKey::Id(other.id)).await.unwrap();
    assert!(matches!(used, Redemption::WrongStatus(_)), "{used:?}");
    assert_eq!(shop.count("outbox WHERE type = 'COUPON_CANCELED'").await, 0);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_restocked_slot_goes_to_somebody_else() {
    let shop = Shop::open(1).await;
    let coupon = issue(&shop, "a").await;
    let canceled = done(shop.database.cancel_coupon(coupon.id).await.unwrap());
    assert_eq!(canceled.status, CouponStatus::Canceled);
    assert_eq!(shop.now().await.issued, 0);
    let events = shop.database.outbox_next(10).await.unwrap();
    shop.database.outbox_done(&[events[0].key]).await.unwrap();
    let events = shop.database.outbox_next(10).await.unwrap();
    assert_eq!(
        (events[0].event.event_type, events[0].restock),
        (EventType::Canceled, true)
    );
    // Not to him who canceled.
    let persisted = shop.persist(&[shop.record(&["a", "b"])]).await;
    assert_eq!(persisted.issued, 1);
    assert_eq!(rejected(&persisted), [("a", Reason::AlreadyIssued)]);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_retained_slot_stays_taken() {
    let shop = Shop::open_with(&CampaignTerms {
        on_cancel: OnCancel::Retain,
        ..terms(1)
    })
    .await;
    let coupon = issue(&shop, "a").await;
    done(shop.database.cancel_coupon(coupon.id).await.unwrap());
    assert_eq!(shop.now().await.issued, 1);
    assert_eq!(shop.count("outbox WHERE restock").await, 0);
    let persisted = shop.persist(&[shop.record(&["b"])]).await;
    assert_eq!(rejected(&persisted), [("b", Reason::OutOfStock)]);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn cancels_and_persists_at_once_never_wait_in_a_circle() {
    let shop = Shop::open(60).await;
    let names: Vec<String> = (0..30).map(|n| format!("u{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = shop.record(&names);
    shop.persist(std::slice::from_ref(&first)).await;
    let cancels = first
        .record
        .claims
        .iter()
        .map(|claim| shop.database.cancel_coupon(claim.request_id));
    // Users who hold a coupon, in another order, and new ones between them.
    let mixed: Vec<String> = (0..30).rev().flat_map(|n| [format!("u{n}"), format!("v{n}")]).collect();
    let records: Vec<_> = mixed
        .chunks(6)
        .map(|names| shop.record(&names.iter().map(String::as_str).collect::<Vec<_>>()))
        .collect();
    let persists = records.iter().map(|record| shop.persist(std::slice::from_ref(record)));
    let (canceled, persisted) = tokio::join!(futures::future::join_all(cancels), futures::future::join_all(persists));
    canceled.into_iter().for_each(|canceled| drop(done(canceled.unwrap())));
    assert_eq!(persisted.iter().map(|persisted| persisted.issued).sum::<u64>(), 30);
    shop.assert_consistent().await;
}

#[tokio::test]
async fn a_users_coupons_come_newest_first_in_pages() {
    let shop = Shop::open(5).await;
    issue(&shop, "a").await;
    for n in 0..4 {
        let name = CampaignName::new("shop", &format!("other-{n}")).unwrap();
        let other = shop.database.create_campaign(&name, &terms(1)).await.unwrap();
        // The first two of one moment: the id decides.
        shop.execute(&format!(
            "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at) \
             VALUES (gen_random_uuid(), '{}', 'a', 'OTHER-{n}', 'abcdefgh-1.0', '2026-01-01'::timestamptz + interval '{} s')",
            other.id,
            n / 2
        ))
        .await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = shop.database.coupons_of(&user("a"), after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.issued_at.as_microsecond(), last.id.0));
        seen.extend(page);
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|a, b| (a.issued_at, a.id) > (b.issued_at, b.id)));
    assert_eq!(shop.database.coupons_of(&user("b"), None, 2).await.unwrap(), []);
}
