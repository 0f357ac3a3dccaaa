//! What the door says is what becomes of it.

use crate::chain::{Chain, at_once, how_many, successes, terms, users};

#[tokio::test(flavor = "multi_thread")]
async fn two_intakes_give_no_more_than_the_quantity() {
    let chain = Chain::patient(3).await;
    let _worker = chain.worker().await;
    let (first, second) = (chain.intake().await, chain.intake().await);
    let told = at_once(200, |i| {
        let door = if i % 2 == 0 { &first } else { &second };
        async move {
            let user = format!("user-{i}");
            let told = door.claim(&user).await;
            (user, told)
        }
    })
    .await;
    assert_eq!(how_many(&told, "SUCCESS"), 3);
    assert_eq!(how_many(&told, "SOLD_OUT"), 197);
    chain.settles_with(3).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_and_one_are_quantities_too() {
    let none = Chain::patient(0).await;
    assert!(none.intake().await.claim("a").await.is("SOLD_OUT"));

    let one = Chain::patient(1).await;
    let _worker = one.worker().await;
    let door = one.intake().await;
    let told = door.burst(users(0..2), 2).await;
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (1, 1));
    one.settles_with(1).await;
    one.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_clicks_of_one_user_use_up_one_coupon() {
    let chain = Chain::patient(10).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let clicks = door.burst((0..50).map(|_| "a".to_owned()), 50).await;
    assert_eq!((how_many(&clicks, "SUCCESS"), how_many(&clicks, "DUPLICATE")), (1, 49));
    let (_, winner) = clicks.iter().find(|(_, told)| told.is("SUCCESS")).unwrap();
    for (_, duplicate) in clicks.iter().filter(|(_, told)| told.is("DUPLICATE")) {
        assert_eq!(
            duplicate.request, winner.request,
            "a duplicate is told which request holds the slot"
        );
    }
    let others = door.burst(users(0..9), 9).await;
    assert_eq!(how_many(&others, "SUCCESS"), 9);
    chain.settles_with(10).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_was_told_success_has_a_row_and_nobody_else() {
    let chain = Chain::patient(100).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let told = door.burst(users(0..10_000), 500).await;
    assert_eq!(how_many(&told, "SUCCESS"), 100);
    assert_eq!(how_many(&told, "SOLD_OUT"), 9_900);
    chain.settles_with(100).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_a_cancel_gave_back_is_sold_at_every_door() {
    let chain = Chain::patient(5).await;
    let _worker = chain.worker().await;
    let (first, second) = (chain.intake().await, chain.intake().await);
    let told = first.burst(users(0..6), 1).await;
    assert_eq!(how_many(&told, "SUCCESS"), 5);
    chain.settles_with(5).await;
    // Both doors have said it.
    assert!(first.claim("late").await.is("SOLD_OUT") && second.claim("late").await.is("SOLD_OUT"));

    let canceled = told[0].1.request.clone().unwrap();
    assert_eq!(first.cancel(&canceled).await, 200);
    chain.settles_with(4).await;
    assert!(
        second.claim(&told[0].0).await.is("DUPLICATE"),
        "the canceled user cannot claim again"
    );
    assert!(second.claim("late").await.is("SUCCESS"));
    assert!(first.claim("later").await.is("SOLD_OUT"));
    chain.settles_with(5).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn issued_is_said_only_when_the_row_is_there() {
    let chain = Chain::patient(20).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..40), 40).await;
    let holders = successes(&told);
    assert_eq!(holders.len(), 20);
    // No worker yet: sold out, and nobody's coupon is there.
    for _ in 0..5 {
        let polls = at_once(20, |i| {
            let (user, request) = holders.iter().nth(i).unwrap().clone();
            let door = &door;
            async move { door.status(&user, &request).await.1["status"].clone() }
        })
        .await;
        assert!(polls.iter().all(|status| status == "PENDING"), "{polls:?}");
    }
    let _worker = chain.worker().await;
    chain.settles_with(20).await;
    for (user, request) in &holders {
        assert_eq!(door.status(user, request).await.1["status"], "ISSUED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_before_the_close_is_issued_after_it() {
    let chain = Chain::patient(10).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..10), 10).await;
    assert_eq!(how_many(&told, "SUCCESS"), 10);
    let mut closed = terms(10);
    closed.closes_at = Some(jiff::Timestamp::now());
    chain.apply(&closed).await;
    assert!(door.claim("late").await.is("CLOSED"));
    let _worker = chain.worker().await;
    chain.settles_with(10).await;
    assert_eq!(chain.rows().await, successes(&told));
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_come_and_go_persist_each_claim_once() {
    let chain = Chain::patient(10_000).await;
    let door = chain.intake().await;
    let first = chain.worker().await;
    let claims = door.burst(users(0..10_000), 256);
    let rebalances = async {
        let mut more = Vec::new();
        for _ in 0..4 {
            more.push(chain.worker().await);
        }
        for worker in more {
            worker.stop().await;
        }
    };
    let (told, ()) = tokio::join!(claims, rebalances);
    assert_eq!(how_many(&told, "SUCCESS"), 10_000);
    chain.settles_with(10_000).await;
    assert_eq!(chain.rows().await, successes(&told));
    let query = "SELECT count(*) FROM coupon_activity WHERE type = 'COUPON_ISSUED'";
    testkit::eventually::eventually(crate::chain::LIMIT, "each event is projected", async || {
        chain.count(query).await == 10_000
    })
    .await;
    assert_eq!(
        chain
            .count("SELECT count(DISTINCT coupon_id) FROM coupon_activity")
            .await,
        10_000
    );
    chain.assert_conserved().await;
    first.stop().await;
}
