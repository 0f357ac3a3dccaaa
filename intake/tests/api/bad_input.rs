//! Input that is refused: a 4xx problem with a stable code, and nothing reserved.

use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::app::TestApp;

#[tokio::test]
async fn bodies_that_are_no_claim() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let long = "u".repeat(129);
    let json = |value: serde_json::Value| serde_json::to_vec(&value).unwrap();
    let name = campaign.to_string();
    for (body, status, code) in [
        (b"{".to_vec(), 400, "INVALID_BODY"),
        (b"".to_vec(), 400, "INVALID_BODY"),
        (b"\xff\xfe".to_vec(), 400, "INVALID_BODY"),
        (json(json!([])), 400, "INVALID_BODY"),
        (json(json!({"campaign": name})), 400, "INVALID_BODY"),
        (json(json!({"userId": "u"})), 400, "INVALID_BODY"),
        (json(json!({"campaign": name, "userId": 7})), 400, "INVALID_BODY"),
        (
            json(json!({"campaign": name, "userId": "u", "x": 1})),
            400,
            "INVALID_BODY",
        ),
        (json(json!({"campaign": name, "userId": ""})), 400, "INVALID_USER_ID"),
        (json(json!({"campaign": name, "userId": long})), 400, "INVALID_USER_ID"),
        (
            json(json!({"campaign": name, "userId": "a\nb"})),
            400,
            "INVALID_USER_ID",
        ),
        (
            json(json!({"campaign": name, "userId": "a\u{0}"})),
            400,
            "INVALID_USER_ID",
        ),
        (
            json(json!({"campaign": "Not A Name", "userId": "u"})),
            400,
            "INVALID_CAMPAIGN",
        ),
        (json(json!({"campaign": "", "userId": "u"})), 400, "INVALID_CAMPAIGN"),
        (
            json(json!({"campaign": "a/b/c", "userId": "u"})),
            400,
            "INVALID_CAMPAIGN",
        ),
        (
            json(json!({"campaign": "nothing", "userId": "u"})),
            404,
            "CAMPAIGN_NOT_FOUND",
        ),
        (vec![b' '; 16 * 1024 + 1], 413, "BODY_TOO_LARGE"),
    ] {
        let reply = app.intake.post_raw(Some("application/json"), body.clone()).await;
        assert_eq!(
            reply.code(),
            code,
            "{:?}",
            String::from_utf8_lossy(&body[..body.len().min(80)])
        );
        reply.assert_problem(status, code);
    }
    assert_eq!(app.numbers(&campaign).await.taken, 0);
    assert!(app.records().await.is_empty());
}

#[tokio::test]
async fn a_large_body_is_refused_also_where_its_length_is_not_announced() {
    let app = TestApp::start().await;
    let mut connection = TcpStream::connect(app.intake.running.public_address).await.unwrap();
    let head = "POST /coupon-issues HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..17 {
        let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
        connection.write_all(chunk.as_bytes()).await.unwrap();
    }
    let mut answer = [0; 12];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn the_longest_user_id_and_any_letters_are_fine() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    for user in ["u".repeat(128).as_str(), "9007199254740993", "사용자", "a\"b\\c"] {
        assert_eq!(app.intake.claim(&campaign, user).await.code(), "SUCCESS", "{user:?}");
    }
    let mut published = app.published(&campaign).await;
    published.sort();
    assert_eq!(published.len(), 4);
    assert!(
        published.contains(&"9007199254740993".to_owned()),
        "not rounded: {published:?}"
    );
}

#[tokio::test]
async fn content_types_other_than_json() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let body = serde_json::to_vec(&json!({"campaign": campaign, "userId": "u"})).unwrap();
    for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        app.intake
            .post_raw(content_type, body.clone())
            .await
            .assert_problem(415, "UNSUPPORTED_MEDIA_TYPE");
    }
    let reply = app.intake.post_raw(Some("Application/JSON; charset=utf-8"), body).await;
    assert_eq!(reply.code(), "SUCCESS");
}

#[tokio::test]
async fn keys_that_are_none() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let long = "k".repeat(256);
    for key in ["", "a b", long.as_str()] {
        app.intake
            .claim_with_key(&campaign, "u", key)
            .await
            .assert_problem(400, "INVALID_IDEMPOTENCY_KEY");
    }
    assert_eq!(app.numbers(&campaign).await.taken, 0);
}

#[tokio::test]
async fn wrong_methods_and_paths() {
    let app = TestApp::start().await;
    let at = |path: &str| format!("{}{path}", app.intake.public);
    for (method, path) in [
        (Method::GET, "/coupon-issues"),
        (Method::DELETE, "/coupon-issues"),
        (Method::POST, "/campaigns/x"),
    ] {
        let reply = app.intake.send(method, &at(path)).await;
        reply.assert_problem(405, "METHOD_NOT_ALLOWED");
        assert!(reply.headers.contains_key("allow"), "{reply:?}");
    }
    for path in ["/", "/coupon-issue", "/coupon-issues/a/b"] {
        app.intake.get(path).await.assert_problem(404, "NOT_FOUND");
    }
}

#[tokio::test]
async fn queries_of_a_status_that_are_none() {
    let app = TestApp::start().await;
    let campaign = app.campaign(10).await;
    let id = crate::app::nobodys_request();
    for (path, status, code) in [
        (
            format!("/coupon-issues/x?campaign={campaign}&userId=u"),
            400,
            "INVALID_REQUEST_ID",
        ),
        (format!("/coupon-issues/{id}"), 400, "INVALID_QUERY"),
        (format!("/coupon-issues/{id}?campaign={campaign}"), 400, "INVALID_QUERY"),
        (
            format!("/coupon-issues/{id}?campaign={campaign}&userId=u&x=1"),
            400,
            "INVALID_QUERY",
        ),
        (
            format!("/coupon-issues/{id}?campaign={campaign}&userId="),
            400,
            "INVALID_USER_ID",
        ),
        (
            format!("/coupon-issues/{id}?campaign=A_B&userId=u"),
            400,
            "INVALID_CAMPAIGN",
        ),
        (
            format!("/coupon-issues/{id}?campaign=nothing&userId=u"),
            404,
            "CAMPAIGN_NOT_FOUND",
        ),
    ] {
        app.intake.get(&path).await.assert_problem(status, code);
    }
}
