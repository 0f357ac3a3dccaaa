//! A server under which the promise cannot hold is refused, with what to do.

use campaign::redis::{
    connection::{Redis, RedisError},
    preflight,
};
use testkit::redis::{RedisOptions, RedisServer};

async fn refused(options: RedisOptions) -> String {
    let server = RedisServer::start_with(options).await.unwrap();
    let redis = Redis::connect(&server.settings()).await.unwrap();
    match preflight::check(&redis).await {
        Err(RedisError::Unsuitable(message)) => message,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let message = refused(RedisOptions::default().with("maxmemory-policy", "allkeys-lru")).await;
    assert!(
        message.contains("allkeys-lru") && message.contains("CONFIG SET maxmemory-policy noeviction"),
        "{message}"
    );
}

#[tokio::test]
async fn a_server_that_would_block_on_expiry_is_refused() {
    let message = refused(RedisOptions::default().with("lazyfree-lazy-expire", "no")).await;
    assert!(message.contains("CONFIG SET lazyfree-lazy-expire yes"), "{message}");
}

#[tokio::test]
async fn a_server_whose_settings_may_not_be_read_is_refused() {
    let message = refused(RedisOptions::default().with("rename-command", "CONFIG \"\"")).await;
    assert!(message.contains("CONFIG GET"), "{message}");
}

#[tokio::test]
async fn a_server_that_is_set_up_passes_also_with_a_password() {
    let server = RedisServer::shared().await.unwrap();
    preflight::check(&Redis::connect(&server.settings()).await.unwrap())
        .await
        .unwrap();

    let mut raw = server.connection().await.unwrap();
    let acl = ["SETUSER", "preflight", "on", ">secret", "~*", "+@all"];
    redis::cmd("ACL").arg(&acl).exec_async(&mut raw).await.unwrap();
    let mut settings = server.settings();
    settings.redis_username = Some("preflight".to_owned());
    settings.redis_password = Some("secret".to_owned());
    preflight::check(&Redis::connect(&settings).await.unwrap())
        .await
        .unwrap();

    settings.redis_password = Some("wrong".to_owned());
    let refused = Redis::connect(&settings).await.err().expect("refused");
    assert!(!refused.to_string().contains("wrong:"), "{refused}");
}

#[tokio::test]
async fn nobody_there_is_said_at_once() {
    let mut server = RedisServer::start().await.unwrap();
    server.stop();
    let error = Redis::connect(&server.settings()).await.err().expect("refused");
    assert!(matches!(error, RedisError::NotRun { .. }), "{error}");
}
