//! Clients that take their time.

use std::{io, time::Duration};

use axum::{Router, routing::get};
use intake::connections::serve;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::app::SOON;

const LIMIT: Duration = Duration::from_millis(200);

async fn connect(ends: &CancellationToken) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(async || "ok"));
    tokio::spawn(serve(listener, router, LIMIT, ends.clone()));
    TcpStream::connect(address).await.unwrap()
}

/// All that comes until the server hangs up.
async fn rest(stream: &mut TcpStream) -> io::Result<String> {
    let mut text = String::new();
    let read = tokio::time::timeout(SOON, stream.read_to_string(&mut text));
    read.await.expect("the server hangs up").map(|_| text)
}

#[tokio::test]
async fn a_head_that_never_ends_is_not_waited_for() {
    let ends = CancellationToken::new();
    let mut stream = connect(&ends).await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        .await
        .unwrap();
    let answered = rest(&mut stream).await.unwrap_or_default();
    assert!(!answered.contains("200 OK"), "{answered}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_answer() {
    let ends = CancellationToken::new();
    let mut stream = connect(&ends).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let answered = rest(&mut stream).await.unwrap();
    assert!(
        answered.starts_with("HTTP/1.1 200 OK") && answered.ends_with("ok"),
        "{answered}"
    );
}
