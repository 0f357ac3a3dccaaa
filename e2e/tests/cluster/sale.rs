//! Apply a campaign, let more users come than there are coupons, and read how it went.

use e2e::{
    burst::{Burst, outcome},
    campaign::{Campaign, SOON, condition, reason},
    kubectl::{Namespace, kubectl},
};

use crate::SETTLED;

#[tokio::test]
async fn a_campaign_is_applied_sold_out_and_accounted_for() {
    let namespace = Namespace::create("sale").await.unwrap();
    let sale = Campaign::example(&namespace.name, "flash-sale").await.unwrap();
    let status = sale.ready().await;
    assert_eq!(status["available"], 1000);
    assert_eq!(condition(&status, "Open"), "True");
    assert_eq!(condition(&status, "Exhausted"), "False");

    let said = Burst::start(&sale, 3000, 0, true)
        .await
        .unwrap()
        .finish()
        .await
        .unwrap();
    assert_eq!(outcome(&said, "SUCCESS"), 1000, "{said}");

    let status = sale.settled(SETTLED, 1000).await;
    assert_eq!(
        (condition(&status, "Exhausted"), reason(&status, "Exhausted")),
        ("True", "SoldOut")
    );
    assert_eq!(condition(&status, "Conserved"), "True");
    sale.until(SOON, "is well", |status| condition(status, "Degraded") == "False")
        .await;
    sale.event("SoldOut").await;

    let table = kubectl(&["-n", &namespace.name, "get", "ccamp"]).await.unwrap();
    println!("{table}");
    let mut lines = table.lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(
        columns,
        ["NAME", "QUANTITY", "ISSUED", "AVAILABLE", "STATE", "READY", "AGE"]
    );
    let row: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..6], ["flash-sale", "1000", "1000", "0", "SoldOut", "True"]);
}

#[tokio::test]
async fn the_examples_are_campaigns_as_they_stand() {
    let namespace = Namespace::create("examples").await.unwrap();
    let mut campaigns = Vec::new();
    for file in ["black-friday", "newsletter", "voucher"] {
        campaigns.push(Campaign::example(&namespace.name, file).await.unwrap());
    }
    for campaign in &campaigns {
        campaign
            .until(SOON, "is ready and well", |status| {
                condition(status, "Ready") == "True" && condition(status, "Degraded") == "False"
            })
            .await;
    }
    let paused = campaigns[2].ready().await;
    assert_eq!(paused["state"], "Paused");
}
