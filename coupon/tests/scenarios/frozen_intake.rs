//! An intake stops (SIGSTOP) after its reserve call for longer than a publish may take, and wakes.

use std::time::Instant;

use campaign::rebuild::{Force, Rebuilt};
use testkit::{
    eventually::eventually,
    kafka::KafkaServer,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::{
    chain::{Chain, LIMIT, Told},
    process::IntakeProcess,
};

/// Lets one user claim at a door that is frozen once `moment` has come, for three times the publish timeout; what
/// happens in between is `meanwhile`. Answers what the frozen door said in the end.
async fn claim_frozen(
    chain: &Chain,
    frozen: &IntakeProcess,
    moment: impl AsyncFn() -> bool,
    meanwhile: impl AsyncFnOnce(),
) -> Told {
    let sleep = async {
        eventually(LIMIT, "the moment to freeze", moment).await;
        let since = Instant::now();
        frozen.process.freeze().unwrap();
        meanwhile().await;
        let long = chain.on.installation.publish_timeout * 3;
        eventually(LIMIT, "it is long past the publish timeout", async || {
            since.elapsed() > long
        })
        .await;
        frozen.process.thaw().unwrap();
    };
    tokio::join!(frozen.door.claim("slow"), sleep).0
}

/// Whoever claimed before is in Kafka; the slow one is not.
async fn rebuilt_without_the_slow_one(chain: &Chain) {
    let rebuilder = &chain.aligner.rebuilder;
    let rebuilt = rebuilder.rebuild(&chain.campaign, Force::Always).await.unwrap();
    assert!(matches!(rebuilt, Rebuilt::Done { users: 1, .. }), "{rebuilt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_had_reserved_and_not_sent_is_never_a_success_and_frees_nobody_elses_slot() {
    let chain = Chain::open(2).await;
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut on = chain.on.clone();
    on.redis = proxy.redis_settings();
    on.redis.redis_timeout = LIMIT;
    let frozen = IntakeProcess::start(&chain, &on).await;
    let door = chain.intake().await;
    // The script is loaded and the topic's leaders are known: what is held below is the claim's own.
    assert!(frozen.door.claim("before").await.is("SUCCESS"));
    proxy.replies(Treatment::Hold);
    let told = claim_frozen(
        &chain,
        &frozen,
        async || chain.numbers().await.taken == 2,
        async || {
            // What Redis answered waits for it, and the state that it was reserved in ends.
            proxy.restore();
            rebuilt_without_the_slow_one(&chain).await;
            assert!(door.claim("slow").await.is("SUCCESS"), "the same user at another door");
        },
    )
    .await;
    assert!(told.is("COUPON_ISSUE_KAFKA_ERROR"), "{told:?}");
    assert_eq!(chain.numbers().await.taken, 2, "an old reservation freed a newer one");
    assert!(door.claim("other").await.is("SOLD_OUT"));
    let _worker = chain.worker().await;
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_had_on_the_way_is_never_a_success_and_is_stale() {
    let chain = Chain::open(2).await;
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut on = chain.on.clone();
    on.kafka = proxy.kafka_settings();
    let frozen = IntakeProcess::start(&chain, &on).await;
    let door = chain.intake().await;
    // The script is loaded and the topic's leaders are known: what is held below is the claim's own.
    assert!(frozen.door.claim("before").await.is("SUCCESS"));
    proxy.requests(Treatment::Hold);
    let told = claim_frozen(
        &chain,
        &frozen,
        async || proxy.holds_something(),
        async || {
            rebuilt_without_the_slow_one(&chain).await;
            // The record comes after the rebuild has looked for it.
            proxy.restore();
            assert!(door.claim("other").await.is("SUCCESS"));
        },
    )
    .await;
    assert!(told.is("COUPON_ISSUE_KAFKA_ERROR") && told.unknown, "{told:?}");

    let _worker = chain.worker().await;
    let request = told.request.unwrap();
    let status = eventually(LIMIT, "its claim is decided", async || {
        let (_, status) = door.status("slow", &request).await;
        // Unknown until the worker has read its record: no state holds it.
        matches!(status["status"].as_str(), Some("ISSUED" | "REJECTED")).then_some(status)
    })
    .await;
    assert_eq!(
        (&status["status"], &status["reason"]),
        (&"REJECTED".into(), &"STALE_EPOCH".into())
    );
    chain.settles_with(2).await;
    let holders: Vec<String> = chain.rows().await.into_iter().map(|(user, _)| user).collect();
    assert_eq!(holders, ["before", "other"]);
    chain.assert_conserved().await;
}
