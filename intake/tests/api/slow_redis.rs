//! A Redis that does not answer, while no claim is taken.

use campaign::{
    kafka::offsets::PastEnd,
    postgres::{consumed::Life, persist::Advance},
};
use futures::{StreamExt, stream::FuturesUnordered};
use testkit::{
    eventually::eventually,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::app::{SOON, TestApp};

/// As many repeated requests look into Redis at a time.
const LOOKS_AT_ONCE: usize = 256;

#[tokio::test]
async fn repeated_requests_do_not_pile_up_before_a_shut_door() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(redis.port()).await.unwrap();
    let app = TestApp::start_with(|settings| {
        settings.redis = proxy.redis_settings();
        settings.redis.redis_timeout = SOON;
    })
    .await;
    let campaign = app.campaign(10).await;
    let first = app.intake.claim_with_key(&campaign, "u", "k").await;
    assert_eq!(first.code(), "SUCCESS");

    // Shut without any probe.
    let topic = app.installation.naming.requests_topic();
    let advance = Advance {
        partition: 0,
        from: 0,
        to: 1,
        life: Life::default(),
    };
    app.database.advance(&topic, &[advance], &[]).await.unwrap();
    let found = PastEnd {
        partition: 0,
        consumed: 1,
        end: 0,
    };
    assert!(app.database.report_shortened(&topic, found).await.unwrap());
    eventually(SOON, "the door is shut", async || {
        app.intake.metric("coupon_intake_topic_shortened").await == 1.0
    })
    .await;

    proxy.requests(Treatment::Hold);
    let more = 50;
    let mut repeats: FuturesUnordered<_> = (0..LOOKS_AT_ONCE + more)
        .map(|_| app.intake.claim_with_key(&campaign, "u", "k"))
        .collect();
    for _ in 0..more {
        // Answered while Redis is not.
        repeats
            .next()
            .await
            .unwrap()
            .assert_problem(503, "COUPON_ISSUE_KAFKA_ERROR");
    }
    proxy.restore();
    let looked: Vec<_> = repeats.collect().await;
    assert_eq!(looked.len(), LOOKS_AT_ONCE);
    for reply in looked {
        assert_eq!((reply.code(), reply.request_id()), ("PENDING", first.request_id()));
    }
}
