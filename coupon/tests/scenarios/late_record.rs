//! A record that was on its way while the state was rebuilt.

use std::time::{Duration, Instant};

use campaign::rebuild::{Force, Rebuilt};
use testkit::{
    eventually::eventually,
    installation::TestInstallation,
    kafka::KafkaServer,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::{
    chain::{Chain, Door, LIMIT, Told, terms},
    records::consumed,
};

/// A campaign of one coupon, with a publish timeout that leaves room for what happens within it.
async fn with_publish_timeout(seconds: u64) -> Chain {
    let mut on = TestInstallation::start().await.unwrap();
    on.installation.publish_timeout = Duration::from_secs(seconds);
    let chain = Chain::on(on).await;
    chain.apply(&terms(1)).await;
    chain
}

async fn rebuild(chain: &Chain) -> u64 {
    let rebuilder = &chain.aligner.rebuilder;
    match rebuilder.rebuild(&chain.campaign, Force::Always).await.unwrap() {
        Rebuilt::Done { users, .. } => users,
        other => panic!("{other:?}"),
    }
}

async fn after(since: Instant, pause: Duration) {
    eventually(LIMIT, format!("{pause:?} later"), async || since.elapsed() > pause).await;
}

/// Acknowledged within the publish timeout, while a rebuild waits for just that.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_acknowledged_in_time_is_in_the_rebuilt_state() {
    let chain = with_publish_timeout(20).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let proxy = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut settings = chain.intake_settings();
    settings.kafka = proxy.kafka_settings();
    let slow = chain.intake_with(settings).await;
    proxy.requests(Treatment::Hold);
    let meanwhile = async {
        eventually(LIMIT, "it is on its way", async || proxy.holds_something()).await;
        let since = Instant::now();
        let acknowledged = async {
            after(since, Duration::from_secs(2)).await;
            proxy.restore();
        };
        tokio::join!(rebuild(&chain), acknowledged).0
    };
    let (told, users) = tokio::join!(slow.claim("slow"), meanwhile);
    assert!(told.is("SUCCESS"), "{told:?}");
    let other = door.claim("other").await;
    chain.assert_kept(&[("slow", &told), ("other", &other)]).await;
    assert_eq!(users, 1);
    assert!(other.is("SOLD_OUT"), "{other:?}");
    chain.settles_with(1).await;
    chain.assert_conserved().await;
}

/// Redis answers late and Kafka, too: the record is stored after the rebuild has looked for it, and acknowledged.
async fn acknowledged_after_the_cut(chain: &Chain) -> Told {
    let redis = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let kafka = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let mut settings = chain.intake_settings();
    settings.redis = redis.redis_settings();
    settings.redis.redis_timeout = LIMIT;
    settings.kafka = kafka.kafka_settings();
    let slow: Door = chain.intake_with(settings).await;
    chain.load_reserve().await;
    redis.replies(Treatment::Hold);
    let meanwhile = async {
        eventually(LIMIT, "it is reserved", async || chain.numbers().await.taken == 1).await;
        let since = Instant::now();
        let sent = async {
            after(since, Duration::from_secs(10)).await;
            kafka.requests(Treatment::Hold);
            redis.restore();
            eventually(LIMIT, "it is on its way", async || kafka.holds_something()).await;
        };
        tokio::join!(rebuild(chain), sent);
        kafka.restore();
    };
    let (told, ()) = tokio::join!(slow.claim("slow"), meanwhile);
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_stored_after_the_cut_is_no_success_and_takes_no_slot() {
    let chain = with_publish_timeout(20).await;
    let _worker = chain.worker().await;
    let door = chain.intake().await;
    let told = acknowledged_after_the_cut(&chain).await;
    consumed(&chain).await;
    let other = door.claim("other").await;
    chain.assert_kept(&[("slow", &told), ("other", &other)]).await;
    assert!(told.is("COUPON_ISSUE_KAFKA_ERROR") && told.unknown, "{told:?}");
    assert!(other.is("SUCCESS"), "{other:?}");
    chain.settles_with(1).await;
    chain.assert_conserved().await;
}
