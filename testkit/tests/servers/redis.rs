use testkit::redis::{RedisOptions, RedisServer, RestartWith};

async fn set(server: &RedisServer, key: &str, value: &str) {
    let mut connection = server.connection().await.unwrap();
    ::redis::cmd("SET")
        .arg(key)
        .arg(value)
        .exec_async(&mut connection)
        .await
        .unwrap();
}

async fn get(server: &RedisServer, key: &str) -> Option<String> {
    let mut connection = server.connection().await.unwrap();
    ::redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap()
}

#[tokio::test]
async fn restarts_on_its_port_with_nothing_or_with_an_older_copy() {
    let mut server = RedisServer::start().await.unwrap();
    let port = server.port();
    set(&server, "early", "1").await;
    let snapshot = server.snapshot().await.unwrap();
    set(&server, "late", "1").await;

    server.restart(RestartWith::Snapshot(&snapshot)).await.unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(get(&server, "early").await.as_deref(), Some("1"));
    assert_eq!(get(&server, "late").await, None);

    server.restart(RestartWith::Nothing).await.unwrap();
    assert_eq!(get(&server, "early").await, None);
}

#[tokio::test]
async fn a_persistent_server_keeps_what_it_answered_when_killed() {
    let mut server = RedisServer::start_with(RedisOptions::default().persistent())
        .await
        .unwrap();
    set(&server, "kept", "1").await;
    server.restart(RestartWith::ItsFiles).await.unwrap();
    assert_eq!(get(&server, "kept").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn is_set_up_as_a_campaign_needs_it_unless_told_otherwise() {
    let evicting = RedisServer::start_with(RedisOptions::default().with("maxmemory-policy", "allkeys-lru"))
        .await
        .unwrap();
    for (server, policy) in [
        (RedisServer::shared().await.unwrap(), "noeviction"),
        (&evicting, "allkeys-lru"),
    ] {
        let mut connection = server.connection().await.unwrap();
        let answer: Vec<String> = ::redis::cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory-policy")
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(answer, ["maxmemory-policy", policy]);
    }
}
