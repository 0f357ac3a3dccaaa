//! The CRD: as it is checked in, what it refuses, and that its spec means what the manifest means.

use campaign::manifest;
use kube::{CustomResourceExt, core::DeserializeGuard};
use operator::resource::CouponCampaign;
use serde_json::{Value, json};

const EXAMPLES: [(&str, &str); 4] = [
    ("flash-sale", include_str!("../../../examples/flash-sale.yaml")),
    ("black-friday", include_str!("../../../examples/black-friday.yaml")),
    ("newsletter", include_str!("../../../examples/newsletter.yaml")),
    ("voucher", include_str!("../../../examples/voucher.yaml")),
];

fn campaign(spec: Value) -> CouponCampaign {
    serde_json::from_value(json!({
        "apiVersion": "coupon-operator.dev/v1alpha1",
        "kind": "CouponCampaign",
        "metadata": {"name": "sale", "namespace": "shop"},
        "spec": spec,
    }))
    .unwrap()
}

#[test]
fn the_crd_that_is_checked_in_is_the_one_of_the_types() {
    let checked_in = include_str!("../../../crds/couponcampaigns.yaml");
    assert!(
        checked_in == operator::crd::yaml().unwrap(),
        "crds/ is behind the types: cargo run --bin operator -- crd > crds/couponcampaigns.yaml"
    );
}

#[test]
fn every_example_means_the_same_to_the_operator_and_to_the_command_line() {
    for (name, text) in EXAMPLES {
        let by_command_line = manifest::CouponCampaign::from_yaml(text).unwrap();
        let by_operator: CouponCampaign = serde_yaml_ng::from_str(text).unwrap();
        assert_eq!(by_operator.spec.manifest().unwrap(), by_command_line.spec, "{name}");
        assert_eq!(
            by_operator.spec.manifest().unwrap().terms(),
            by_command_line.spec.terms(),
            "{name}"
        );
        by_operator
            .validate_cel()
            .unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
    }
}

#[test]
fn what_a_spec_leaves_out_has_the_same_defaults_in_both() {
    let by_operator = campaign(json!({"quantity": 5})).spec.manifest().unwrap();
    let by_command_line: manifest::CouponCampaignSpec = serde_json::from_value(json!({"quantity": 5})).unwrap();
    assert_eq!(by_operator, by_command_line);
}

#[test]
fn times_are_kept_to_the_millisecond() {
    let spec = json!({"quantity": 5, "opensAt": "2026-11-27T01:00:00.125+01:00", "closesAt": "2026-11-27T01:00:00Z"});
    let terms = campaign(spec).spec.manifest().unwrap().terms();
    assert_eq!(terms.opens_at.unwrap().to_string(), "2026-11-27T00:00:00.125Z");
}

#[test]
fn a_spec_of_another_release_does_not_stop_the_watch() {
    let object: DeserializeGuard<CouponCampaign> = serde_json::from_value(json!({
        "apiVersion": "coupon-operator.dev/v1alpha1",
        "kind": "CouponCampaign",
        "metadata": {"name": "sale", "namespace": "shop"},
        "spec": {"quantity": "many"},
    }))
    .unwrap();
    assert_eq!(object.0.unwrap_err().metadata.name.as_deref(), Some("sale"));
}

#[test]
fn the_rules_name_what_is_wrong() {
    for (what, spec, says) in [
        ("quantity", json!({"quantity": -1}), "quantity must be 0 or more"),
        ("ttl", json!({"quantity": 1, "ttl": "59s"}), "ttl must be 1m or more"),
        (
            "ttl of nothing",
            json!({"quantity": 1, "ttl": "0s"}),
            "ttl must be 1m or more",
        ),
        (
            "window",
            json!({"quantity": 1, "opensAt": "2026-11-28T00:00:00Z", "closesAt": "2026-11-27T00:00:00Z"}),
            "closesAt must be after opensAt",
        ),
        (
            "empty window",
            json!({"quantity": 1, "opensAt": "2026-11-27T00:00:00Z", "closesAt": "2026-11-27T00:00:00Z"}),
            "closesAt must be after opensAt",
        ),
        (
            "workers",
            json!({"quantity": 1, "worker": {"minReplicas": 3, "maxReplicas": 2}}),
            "maxReplicas (8 if missing) must not be less than minReplicas",
        ),
        (
            "more workers than the ceiling that nobody gave",
            json!({"quantity": 1, "worker": {"minReplicas": 20}}),
            "maxReplicas (8 if missing) must not be less than minReplicas",
        ),
        (
            "ttl in days",
            json!({"quantity": 1, "ttl": "1d"}),
            "ttl must be in hours",
        ),
        ("no ttl", json!({"quantity": 1, "ttl": ""}), "ttl must be in hours"),
        (
            "ttl that no clock holds",
            json!({"quantity": 1, "ttl": "900000000h"}),
            "ttl must be in hours",
        ),
        (
            "ttl of centuries",
            json!({"quantity": 1, "ttl": "900000h"}),
            "ttl must be 876600h (100 years) or less",
        ),
        (
            "warmup",
            json!({"quantity": 1, "intake": {"warmup": "soon"}}),
            "warmup must be in hours",
        ),
        (
            "validFor of letters",
            json!({"quantity": 1, "coupon": {"validFor": "abc"}}),
            "validFor must be in hours",
        ),
        (
            "no worker",
            json!({"quantity": 1, "worker": {"minReplicas": 0, "maxReplicas": 0}}),
            "maxReplicas must be 1 or more",
        ),
        (
            "backlog",
            json!({"quantity": 1, "worker": {"targetBacklog": 0}}),
            "targetBacklog must be 1 or more",
        ),
        (
            "intake",
            json!({"quantity": 1, "intake": {"replicas": -1}}),
            "replicas must be 0 or more",
        ),
        (
            "validFor",
            json!({"quantity": 1, "coupon": {"validFor": "0s"}}),
            "validFor must be more than 0",
        ),
        (
            "percentage",
            json!({"quantity": 1, "coupon": {"discount": {"type": "Percentage", "value": 101}}}),
            "a percentage is at most 100",
        ),
    ] {
        let errors = campaign(spec).validate_cel().expect_err(what);
        assert!(format!("{errors:?}").contains(says), "{what}: {errors:?}");
    }
    campaign(json!({"quantity": 0, "ttl": "1m", "coupon": {"discount": {"type": "Amount", "value": 101}}}))
        .validate_cel()
        .unwrap();
}

#[test]
fn a_name_that_no_campaign_may_have_is_refused() {
    let long = "x".repeat(64);
    for (name, fits) in [
        ("sale-26", true),
        (&long[1..], true),
        ("a.b", false),
        (long.as_str(), false),
    ] {
        let mut campaign = campaign(json!({"quantity": 1}));
        campaign.metadata.name = Some(name.to_owned());
        let result = campaign.validate_cel();
        assert_eq!(result.is_ok(), fits, "{name}: {result:?}");
    }
}

/// Defaults are in the texts of `kubectl explain`, too.
#[test]
fn the_documented_defaults_are_those_in_force() {
    let crd = serde_json::to_value(CouponCampaign::crd()).unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    for path in [
        "ttl",
        "paused",
        "onCancel",
        "onDeadLetter",
        "deletionPolicy",
        "intake.replicas",
        "intake.warmup",
        "worker.minReplicas",
        "worker.maxReplicas",
        "worker.targetBacklog",
    ] {
        let field = path
            .split('.')
            .enumerate()
            .fold(spec, |schema, (depth, name)| match depth {
                0 => &schema[name],
                _ => &schema["properties"][name],
            });
        let default = match &field["default"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let description = field["description"].as_str().unwrap();
        let said = format!("{default} if missing");
        // Texts are wrapped.
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            description.contains(&said),
            "{path}: {said:?} is not in {description:?}"
        );
    }
}

#[test]
fn what_is_given_cannot_change_and_everything_else_may() {
    let before = json!({
        "quantity": 10,
        "coupon": {"codePrefix": "BF26", "discount": {"type": "Percentage", "value": 20}},
    });
    for (what, after, says) in [
        (
            "quantity, window and pause",
            json!({"quantity": 5, "paused": true, "closesAt": "2026-11-27T00:00:00Z", "coupon": before["coupon"]}),
            None,
        ),
        (
            "codePrefix",
            json!({"quantity": 10, "coupon": {"codePrefix": "BF27", "discount": before["coupon"]["discount"]}}),
            Some("codePrefix cannot change"),
        ),
        (
            "discount",
            json!({"quantity": 10, "coupon": {"codePrefix": "BF26", "discount": {"type": "Percentage", "value": 10}}}),
            Some("discount cannot change"),
        ),
        (
            "no discount",
            json!({"quantity": 10, "coupon": {"codePrefix": "BF26"}}),
            Some("discount cannot change"),
        ),
    ] {
        let result = campaign(after).validate_cel_update(&campaign(before.clone()));
        match says {
            None => result.unwrap_or_else(|errors| panic!("{what}: {errors:?}")),
            Some(says) => {
                let errors = result.expect_err(what);
                assert!(format!("{errors:?}").contains(says), "{what}: {errors:?}");
            }
        }
    }
}

#[test]
fn people_find_it_by_its_short_name_and_see_what_matters() {
    let crd = serde_json::to_value(CouponCampaign::crd()).unwrap();
    assert_eq!(crd["spec"]["names"]["shortNames"], json!(["ccamp"]));
    assert_eq!(crd["spec"]["names"]["categories"], json!(["coupon"]));
    let version = &crd["spec"]["versions"][0];
    assert_eq!(version["subresources"], json!({"status": {}}));
    let columns: Vec<&str> = version["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns, ["Quantity", "Issued", "Available", "State", "Ready", "Age"]);
}

#[test]
fn every_field_is_documented() {
    let crd = serde_json::to_value(CouponCampaign::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut bare = Vec::new();
    for part in ["spec", "status"] {
        undocumented(part, &schema[part], &mut bare);
    }
    assert_eq!(bare, [""; 0]);
}

fn undocumented(path: &str, schema: &Value, bare: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(str::is_empty) {
        bare.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        undocumented(&format!("{path}.{name}"), property, bare);
    }
}
