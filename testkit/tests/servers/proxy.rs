use std::time::{Duration, Instant};

use testkit::{
    eventually::eventually,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};
use tokio::io::AsyncReadExt;

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
/// For an answer that does not come.
const SHORT: Duration = Duration::from_millis(300);

/// Counts on the server, so that a test can see whether a command ran though its answer never came.
async fn incr(connection: &mut redis::aio::MultiplexedConnection, key: &str) -> redis::RedisResult<i64> {
    redis::cmd("INCR").arg(key).query_async(connection).await
}

async fn setup() -> (&'static RedisServer, Proxy, String) {
    let server = RedisServer::shared().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    (server, proxy, uuid::Uuid::new_v4().to_string())
}

/// Through the proxy, as patient as it takes.
async fn connect(proxy: &Proxy) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LIMIT))
        .set_response_timeout(Some(LIMIT));
    redis::Client::open(proxy.redis_settings().redis_urls[0].as_str())?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

async fn count(server: &RedisServer, key: &str) -> Option<i64> {
    let mut connection = server.connection().await.unwrap();
    redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap()
}

#[tokio::test]
async fn a_swallowed_reply_is_of_a_command_that_ran_and_leaves_no_hole_behind() {
    let (server, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    assert_eq!(incr(&mut connection, &key).await.unwrap(), 1);

    connection.set_response_timeout(SHORT);
    proxy.drop_replies();
    assert!(incr(&mut connection, &key).await.unwrap_err().is_timeout());
    eventually(LIMIT, "it ran", async || count(server, &key).await == Some(2)).await;

    proxy.restore();
    // The stream has a hole: the old connection is cut instead of giving a late answer to a later command.
    eventually(LIMIT, "the old connection is cut", async || {
        incr(&mut connection, &key)
            .await
            .is_err_and(|error| !error.is_timeout())
    })
    .await;
    let mut connection = connect(&proxy).await.unwrap();
    let before = count(server, &key).await.unwrap();
    assert_eq!(incr(&mut connection, &key).await.unwrap(), before + 1);
}

#[tokio::test]
async fn swallowed_requests_never_run() {
    let (server, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    connection.set_response_timeout(SHORT);
    proxy.requests(Treatment::Swallow);
    incr(&mut connection, &key).await.unwrap_err();
    assert_eq!(count(server, &key).await, None);
}

#[tokio::test]
async fn held_replies_arrive_later_in_order() {
    let (server, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    proxy.replies(Treatment::Hold);
    let mut second = connection.clone();
    let (first, second, ()) = tokio::join!(incr(&mut connection, &key), incr(&mut second, &key), async {
        eventually(LIMIT, "both ran", async || count(server, &key).await == Some(2)).await;
        proxy.restore();
    });
    assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
}

#[tokio::test]
async fn a_delay_makes_answers_late() {
    let (_, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    let delay = Duration::from_millis(100);
    proxy.replies(Treatment::Delay(delay));
    let asked = Instant::now();
    incr(&mut connection, &key).await.unwrap();
    assert!(asked.elapsed() >= delay);
}

#[tokio::test]
async fn cut_connections_can_be_made_anew_and_refused_ones_only_after_restore() {
    let (_, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    proxy.cut();
    incr(&mut connection, &key).await.unwrap_err();
    let mut connection = connect(&proxy).await.unwrap();
    incr(&mut connection, &key).await.unwrap();

    proxy.refuse();
    incr(&mut connection, &key).await.unwrap_err();
    eventually(LIMIT, "new connections are refused", async || {
        connect(&proxy).await.is_err_and(|error| error.is_connection_refusal())
    })
    .await;

    proxy.restore();
    eventually(LIMIT, "new connections are accepted", async || {
        connect(&proxy).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn held_requests_pass_one_by_one_until_the_moment_comes() {
    let (server, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    proxy.requests(Treatment::Hold);
    let commands = async {
        for n in 1..=5 {
            assert_eq!(incr(&mut connection, &key).await.unwrap(), n);
        }
    };
    let steps = async {
        let third = async || count(server, &key).await == Some(3);
        proxy.step_until(LIMIT, "the third one ran", third).await;
        assert!(proxy.holds_something(), "the fourth one waits");
        assert_eq!(count(server, &key).await, Some(3));
        proxy.restore();
    };
    tokio::join!(commands, steps);
    assert_eq!(count(server, &key).await, Some(5));
}

#[tokio::test]
async fn nothing_comes_through_once_it_is_shut() {
    let (server, proxy, key) = setup().await;
    let mut connection = connect(&proxy).await.unwrap();
    incr(&mut connection, &key).await.unwrap();
    proxy.shut().await;
    incr(&mut connection, &key).await.unwrap_err();
    assert!(connect(&proxy).await.is_err_and(|error| error.is_connection_refusal()));
    assert_eq!(count(server, &key).await, Some(1));
}

/// Both wait for the proxy at the same moment: the connection and the word to refuse.
#[tokio::test]
async fn a_connection_that_comes_in_while_it_is_told_to_refuse_is_cut_too() {
    let (_, proxy, _) = setup().await;
    for _ in 0..20 {
        proxy.restore();
        let client = eventually(LIMIT, "connections are accepted", async || {
            std::net::TcpStream::connect(("127.0.0.1", proxy.port())).ok()
        })
        .await;
        proxy.refuse();
        client.set_nonblocking(true).unwrap();
        let mut client = tokio::net::TcpStream::from_std(client).unwrap();
        let ended = tokio::time::timeout(LIMIT, client.read(&mut [0])).await;
        assert!(matches!(ended, Ok(Ok(0) | Err(_))), "it still leads to the server");
    }
}
