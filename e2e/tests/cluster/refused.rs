//! Manifests that cannot be meant are refused by the API server, which names the field.

use e2e::{campaign::Campaign, kubectl::Namespace};
use serde_json::json;

#[tokio::test]
async fn the_api_server_refuses_what_cannot_be_meant_and_names_it() {
    let namespace = Namespace::create("refused").await.unwrap();
    let campaign = Campaign::named(&namespace.name, "sale");
    for (spec, named) in [
        (json!({}), "spec.quantity"),
        (json!({"quantity": -1}), "spec.quantity"),
        (json!({"quantity": "many"}), "spec.quantity"),
        (json!({"quantity": 1, "ttl": "59s"}), "spec.ttl"),
        (json!({"quantity": 1, "ttl": "1 day"}), "spec.ttl"),
        (
            json!({"quantity": 1, "ttl": "1d"}),
            "ttl must be in hours, minutes and seconds",
        ),
        (
            json!({"quantity": 1, "ttl": "900000000h"}),
            "ttl must be in hours, minutes and seconds",
        ),
        (
            json!({"quantity": 1, "ttl": "900000h"}),
            "ttl must be 876600h (100 years) or less",
        ),
        (
            json!({"quantity": 1, "intake": {"warmup": "soon"}}),
            "spec.intake.warmup",
        ),
        (
            json!({"quantity": 1, "coupon": {"validFor": "abc"}}),
            "spec.coupon.validFor",
        ),
        (
            json!({"quantity": 1, "worker": {"minReplicas": 20}}),
            "maxReplicas (8 if missing) must not be less than minReplicas",
        ),
        (
            json!({"quantity": 1, "opensAt": "2026-11-28T00:00:00Z", "closesAt": "2026-11-27T00:00:00Z"}),
            "spec.closesAt",
        ),
        (json!({"quantity": 1, "opensAt": "tomorrow"}), "spec.opensAt"),
        (json!({"quantity": 1, "onCancel": "Keep"}), "spec.onCancel"),
        (
            json!({"quantity": 1, "worker": {"minReplicas": 3, "maxReplicas": 2}}),
            "spec.worker.maxReplicas",
        ),
        (
            json!({"quantity": 1, "coupon": {"discount": {"type": "Percentage", "value": 101}}}),
            "spec.coupon.discount.value",
        ),
        (
            json!({"quantity": 1, "coupon": {"codePrefix": "black friday"}}),
            "spec.coupon.codePrefix",
        ),
        // kubectl asks for strict validation.
        (
            json!({"quantity": 1, "closedAt": "2026-11-27T00:00:00Z"}),
            "spec.closedAt",
        ),
    ] {
        match campaign.apply(spec.clone()).await {
            Ok(()) => panic!("{spec} was accepted"),
            Err(error) => assert!(error.to_string().contains(named), "{spec}: {error}"),
        }
    }
}

#[tokio::test]
async fn the_api_server_refuses_names_that_no_campaign_may_have() {
    let namespace = Namespace::create("refused-names").await.unwrap();
    for name in ["a.b", &"x".repeat(64)] {
        let campaign = Campaign::named(&namespace.name, name);
        match campaign.apply(json!({"quantity": 1})).await {
            Ok(()) => panic!("{name} was accepted"),
            Err(error) => assert!(error.to_string().contains("metadata.name"), "{name}: {error}"),
        }
    }
}
