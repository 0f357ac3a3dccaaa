//! Redis has run the script, and its answer is lost.

use testkit::{
    eventually::eventually, installation::TestInstallation, proxy::Proxy, redis::RedisServer,
    redis_cluster::RedisCluster,
};

use crate::chain::{Chain, LIMIT, terms};

/// The door goes through proxies that swallow Redis' answers; the rest of the chain does not.
async fn a_lost_answer_counts_once(chain: Chain, door_redis: campaign::settings::RedisSettings, proxies: &[Proxy]) {
    chain.apply(&terms(10)).await;
    let mut settings = chain.intake_settings();
    settings.redis = door_redis;
    settings.redis.redis_timeout = std::time::Duration::from_secs(1);
    let door = chain.intake_with(settings).await;
    assert!(door.claim("before").await.is("SUCCESS"));

    proxies.iter().for_each(Proxy::drop_replies);
    let told = door.claim_with("a", Some("key-1")).await;
    assert!(told.is("STATE_UNAVAILABLE") && told.unknown, "{told:?}");
    assert_eq!(chain.numbers().await.taken, 2, "it ran once");
    assert_eq!(chain.count("SELECT count(*) FROM coupon WHERE user_id = 'a'").await, 0);
    proxies.iter().for_each(Proxy::restore);

    // The same key at once: its attempt is pending, and nothing is published for it.
    eventually(LIMIT, "the door speaks with Redis again", async || {
        let told = door.claim_with("a", Some("key-1")).await;
        (!told.is("STATE_UNAVAILABLE")).then_some(told)
    })
    .await;
    let _worker = chain.worker().await;
    eventually(LIMIT, "the attempt is swept and the same key succeeds", async || {
        door.claim_with("a", Some("key-1")).await.is("SUCCESS")
    })
    .await;
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_server_a_lost_answer_is_not_run_again() {
    let server = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let chain = Chain::on(TestInstallation::start().await.unwrap()).await;
    let through = proxy.redis_settings();
    a_lost_answer_counts_once(chain, through, &[proxy]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_a_lost_answer_is_not_run_again() {
    let (cluster, proxies) = RedisCluster::behind_proxies().await.unwrap();
    let mut on = TestInstallation::start().await.unwrap();
    on.redis = cluster.settings();
    let through = on.redis.clone();
    let chain = Chain::on(on).await;
    // All of the chain goes through the proxies here: the rest asks again until they pass.
    a_lost_answer_counts_once_on_cluster(chain, through, &proxies).await;
}

/// As above; but state reads wait until the proxies pass again, since a node is only reached through its proxy.
async fn a_lost_answer_counts_once_on_cluster(
    chain: Chain,
    mut redis: campaign::settings::RedisSettings,
    proxies: &[Proxy],
) {
    chain.apply(&terms(10)).await;
    let mut settings = chain.intake_settings();
    redis.redis_timeout = std::time::Duration::from_secs(1);
    settings.redis = redis;
    let door = chain.intake_with(settings).await;
    assert!(door.claim("before").await.is("SUCCESS"));
    proxies.iter().for_each(Proxy::drop_replies);
    let told = door.claim_with("a", Some("key-1")).await;
    assert!(told.is("STATE_UNAVAILABLE") && told.unknown, "{told:?}");
    proxies.iter().for_each(Proxy::restore);
    let numbers = eventually(LIMIT, "Redis is reached again", async || {
        match chain.state.state(&chain.campaign).await {
            Ok(campaign::redis::state::StateAnswer::Present(numbers)) => Some(numbers),
            _ => None,
        }
    })
    .await;
    assert_eq!((numbers.taken, numbers.pending), (2, 2), "it ran once");
    let _worker = chain.worker().await;
    eventually(LIMIT, "the attempt is swept and the same key succeeds", async || {
        door.claim_with("a", Some("key-1")).await.is("SUCCESS")
    })
    .await;
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}
