//! The local stack: comes up, serves a campaign, and stops with nothing left behind.

use std::time::Duration;

use campaign::manifest::CouponCampaign;
use coupon::stack::{Stack, StackSettings};
use serde_json::{Value, json};
use testkit::{eventually::eventually, installation::TestInstallation};

const MANIFEST: &str = "
apiVersion: coupon-operator.dev/v1alpha1
kind: CouponCampaign
metadata: {name: stack}
spec: {quantity: 1, ttl: 1h}
";

/// Claims once the door knows the campaign: it looks for new ones once a second.
async fn claim(stack: &Stack, user: &str) -> Value {
    let url = format!("http://{}/coupon-issues", stack.public_address);
    let claim = json!({"campaign": "stack", "userId": user});
    eventually(Duration::from_secs(20), "the door knows the campaign", async || {
        let answer = reqwest::Client::new().post(&url).json(&claim).send().await.unwrap();
        let told: Value = answer.json().await.unwrap();
        (told["code"] != "CAMPAIGN_NOT_FOUND").then_some(told)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sells_out_keeps_its_data_and_uses_given_servers() {
    let given = TestInstallation::start().await.unwrap();
    let settings = {
        let mut settings = StackSettings::launched().unwrap();
        settings.installation = given.installation.clone();
        settings.redis.settings = given.redis.clone();
        settings.redis.address = true;
        settings.kafka.settings = given.kafka.clone();
        settings.kafka.address = true;
        settings.postgres.settings = given.postgres.clone();
        settings.postgres.address = true;
        settings
    };
    let manifest = CouponCampaign::from_yaml(MANIFEST).unwrap();

    let stack = Stack::start(settings.clone(), |_| {}).await.unwrap();
    assert!(stack.apply(&manifest).await.unwrap().created);
    let success = claim(&stack, "ada").await;
    assert_eq!(success["result"], "SUCCESS");
    assert_eq!(claim(&stack, "bob").await["code"], "SOLD_OUT");
    let url = format!(
        "http://{}/coupon-issues/{}?campaign=stack&userId=ada",
        stack.public_address,
        success["requestId"].as_str().unwrap()
    );
    eventually(Duration::from_secs(20), "the claim becomes a coupon", async || {
        let status: Value = reqwest::get(&url).await.ok()?.json().await.ok()?;
        (status["status"] == "ISSUED").then_some(())
    })
    .await;
    stack.stop().await.unwrap();

    let again = Stack::start(settings, |_| {}).await.unwrap();
    assert!(!again.apply(&manifest).await.unwrap().created);
    assert_eq!(claim(&again, "ada").await["code"], "DUPLICATE");
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn launches_what_is_not_given_and_takes_it_down_again() {
    let stack = Stack::start(StackSettings::launched().unwrap(), |_| {}).await.unwrap();
    stack
        .apply(&CouponCampaign::from_yaml(MANIFEST).unwrap())
        .await
        .unwrap();
    assert_eq!(claim(&stack, "ada").await["result"], "SUCCESS");
    let arguments = stack.arguments.clone();
    stack.stop().await.unwrap();
    let host_ports = [
        arguments.redis.redis_urls[0].trim_start_matches("redis://").to_owned(),
        arguments.kafka.kafka_brokers,
        host_port(&arguments.postgres.postgres_url),
    ];
    for address in host_ports {
        let refused = std::net::TcpStream::connect(&address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{address}");
    }
}

/// `host:port` of a database URL.
fn host_port(url: &str) -> String {
    let after_user = url.split_once('@').unwrap().1;
    after_user.split_once('/').unwrap().0.to_owned()
}
