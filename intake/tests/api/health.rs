//! Probes and metrics.

use testkit::{eventually::eventually, kafka::KafkaServer, proxy::Proxy, redis::RedisServer};

use crate::app::{SOON, TestApp};

#[tokio::test]
async fn ready_and_alive_whatever_the_servers_do() {
    let redis = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let kafka = KafkaServer::shared().await.unwrap().proxy().await.unwrap();
    let app = TestApp::start_with(|settings| {
        settings.redis = redis.redis_settings();
        settings.kafka = kafka.kafka_settings();
    })
    .await;
    redis.refuse();
    kafka.refuse();
    eventually(SOON, "the outage is noticed", async || {
        app.intake.metric("coupon_intake_kafka_open").await == 0.0
    })
    .await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(app.intake.get(path).await.status.as_u16(), 200, "{path}");
        assert_eq!(app.intake.get_internal(path).await.status.as_u16(), 200, "{path}");
    }
}

#[tokio::test]
async fn what_happens_is_counted() {
    let app = TestApp::start().await;
    let campaign = app.campaign(1).await;
    app.intake.claim(&campaign, "u").await;
    app.intake.claim(&campaign, "u").await;
    app.intake.claim(&campaign, "v").await;

    for (series, value) in [
        ("coupon_intake_claims_total{result=\"success\"}", 1.0),
        ("coupon_intake_claims_total{result=\"duplicate\"}", 1.0),
        ("coupon_intake_claims_total{result=\"sold_out\"}", 1.0),
        ("coupon_intake_claims_total{result=\"overloaded\"}", 0.0),
        ("coupon_intake_publishes_total{result=\"acknowledged\"}", 1.0),
        ("coupon_intake_reserve_claims_count", 3.0),
        ("coupon_intake_reserve_seconds_count", 3.0),
        ("coupon_intake_acknowledge_seconds_count", 1.0),
        ("coupon_intake_in_flight", 0.0),
        ("coupon_intake_waiting", 0.0),
        ("coupon_intake_kafka_open", 1.0),
    ] {
        eventually(SOON, format!("{series} {value}"), async || {
            app.intake.metric(series).await == value
        })
        .await;
    }
}

#[tokio::test]
async fn every_metric_is_explained() {
    let app = TestApp::start().await;
    let text = app.intake.get_internal("/metrics").await;
    let explained = include_str!("../../../docs/metrics.md");
    let mut names = 0;
    for line in text.body.as_str().unwrap().lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) {
            names += 1;
            assert!(explained.contains(name), "docs/metrics.md lacks {name}");
        }
    }
    assert!(names > 5, "{text:?}");
}
