use testkit::{
    redis::{RedisOptions, RestartWith},
    redis_sentinel::RedisSentinel,
};

#[tokio::test]
async fn changes_the_primary_when_told_and_when_it_is_killed() {
    let mut group = RedisSentinel::start().await.unwrap();
    let first = group.primary().await.unwrap().port();

    group.failover().await.unwrap();
    let second = group.primary().await.unwrap().port();
    assert_ne!(second, first);

    group.kill_primary().await.unwrap();
    assert_eq!(group.primary().await.unwrap().port(), first);
    for server in group.servers_mut() {
        if server.pid().is_none() {
            server.restart(RestartWith::Nothing).await.unwrap();
        }
    }
}

#[tokio::test]
async fn three_sentinels_agree_on_the_new_primary() {
    let mut group = RedisSentinel::start_with(RedisOptions::default(), 3).await.unwrap();
    let first = group.primary().await.unwrap().port();
    group.kill_primary().await.unwrap();
    assert_ne!(group.primary().await.unwrap().port(), first);
    assert_eq!(group.settings().redis_urls.len(), 3);
}
