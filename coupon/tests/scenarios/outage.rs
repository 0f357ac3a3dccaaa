//! Kafka is out.

use testkit::{eventually::eventually, installation::TestInstallation, kafka::KafkaServer};

use crate::{
    chain::{Chain, LIMIT, Told, how_many, successes, terms, users},
    records::consumed,
};

async fn behind_a_proxy() -> (Chain, testkit::proxy::Proxy) {
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    on.kafka = proxy.kafka_settings();
    (Chain::on(on).await, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_does_not_eat_the_stock() {
    let (chain, proxy) = behind_a_proxy().await;
    chain.apply(&terms(1_000)).await;
    let door = chain.intake().await;
    let _worker = chain.worker().await;
    proxy.refuse();
    // While one of them tries as the probe, the others are refused. Every time other users: who gets through before the
    // wire is cut is told ever after what he has.
    let mut round = 0;
    eventually(LIMIT, "the door is shut before it reserves", async || {
        round += 1;
        let probes = users(round * 10_000..round * 10_000 + 4);
        let refused = |told: &Told| told.is("COUPON_ISSUE_KAFKA_ERROR") && !told.unknown;
        door.burst(probes, 4).await.iter().any(|(_, told)| refused(told))
    })
    .await;
    let told = door.burst(users(0..5_000), 250).await;
    assert_eq!(how_many(&told, "SUCCESS"), 0);
    assert_eq!(how_many(&told, "COUPON_ISSUE_KAFKA_ERROR"), 5_000);
    let taken = chain.numbers().await.taken;
    assert!(
        taken < 100,
        "only probes reserve while Kafka is out, but {taken} slots are taken"
    );

    proxy.restore();
    eventually(
        LIMIT,
        "what the probes took is free again and the door is open",
        async || {
            let open = !door.claim("after").await.is("COUPON_ISSUE_KAFKA_ERROR");
            let numbers = chain.numbers().await;
            open && numbers.pending == 0
        },
    )
    .await;
    let told = door.burst(users(5_000..10_000), 250).await;
    // "after", and perhaps a probe whose record came through, hold coupons too.
    let sold = how_many(&told, "SUCCESS") as i64;
    assert!((900..1_000).contains(&sold), "{sold}");
    chain.settles_with(1_000).await;
    assert!(chain.rows().await.is_superset(&successes(&told)));
    chain.assert_conserved().await;
}

/// The record is stored, and its door does not hear of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_acknowledgement_is_lost_is_sold_to_nobody_else() {
    let chain = Chain::open(2).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut settings = chain.intake_settings();
    settings.kafka = proxy.kafka_settings();
    let deaf = chain.intake_with(settings).await;
    assert!(deaf.claim("before").await.is("SUCCESS"));
    proxy.drop_replies();
    let unheard = deaf.claim("unheard").await;
    consumed(&chain).await;
    let other = door.claim("other").await;
    chain.assert_kept(&[("unheard", &unheard), ("other", &other)]).await;
    assert!(unheard.is("COUPON_ISSUE_KAFKA_ERROR") && unheard.unknown, "{unheard:?}");
    assert!(other.is("SOLD_OUT"), "{other:?}");
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_is_lost_is_unknown_and_has_one_outcome() {
    let (chain, proxy) = behind_a_proxy().await;
    chain.apply(&terms(30)).await;
    let door = chain.intake().await;
    assert!(door.claim("before").await.is("SUCCESS"));
    proxy.drop_replies();
    let told = door.burst(users(0..10), 10).await;
    for (user, told) in &told {
        assert!(told.is("COUPON_ISSUE_KAFKA_ERROR"), "{user}: {told:?}");
    }
    assert!(told.iter().any(|(_, told)| told.unknown && told.request.is_some()));
    // Nothing was released by the door: what is reserved may be stored.
    let unknown: Vec<_> = told.iter().filter(|(_, told)| told.unknown).collect();
    assert_eq!(chain.numbers().await.taken, 1 + unknown.len() as i64);

    proxy.restore();
    let _worker = chain.worker().await;
    eventually(LIMIT, "every claim is decided", async || {
        chain.numbers().await.pending == 0
    })
    .await;
    let rows = chain.rows().await;
    for (user, told) in unknown {
        let request = told.request.clone().unwrap();
        let issued = rows.contains(&(user.clone(), request.clone()));
        let (_, status) = door.status(user, &request).await;
        let expected = if issued { "ISSUED" } else { "REJECTED" };
        assert_eq!(status["status"], expected, "{user}: {status}");
    }
    assert_eq!(chain.numbers().await.taken, rows.len() as i64);
    chain.assert_conserved().await;
}
