//! What the operator may do, and nothing more.

use e2e::chart::render;
use serde_json::Value;

use crate::{DEV, PRODUCTION};

/// What is there while the release is: without the roles of people and of the uninstall.
const RUNNING: &[&str] = &["aggregatedRoles=false", "operator.letGoOnUninstall=false"];

fn allowed(roles: &[&Value]) -> Vec<String> {
    let texts = |list: &Value| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .filter_map(|text| text.as_str().map(str::to_owned))
            .collect()
    };
    let mut allowed = Vec::new();
    for rule in roles.iter().filter_map(|role| role["rules"].as_array()).flatten() {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                allowed.push(format!("{verb} {resource}"));
            }
        }
    }
    allowed.sort();
    allowed.dedup();
    allowed
}

#[tokio::test]
async fn campaigns_are_watched_in_the_whole_cluster_or_in_named_namespaces() {
    let everywhere = render(DEV, RUNNING).await.unwrap();
    assert_eq!(everywhere.of_kind("ClusterRole").len(), 1);
    assert_eq!(everywhere.of_kind("Role").len(), 1);

    let named = render(PRODUCTION, RUNNING).await.unwrap();
    assert!(named.of_kind("ClusterRole").is_empty());
    assert!(named.of_kind("ClusterRoleBinding").is_empty());
    let namespaces: Vec<&str> = named
        .of_kind("Role")
        .iter()
        .filter_map(|role| role["metadata"]["namespace"].as_str())
        .collect();
    assert_eq!(namespaces, ["shop", "games"]);
    assert_eq!(named.of_kind("RoleBinding").len(), 3);
}

#[tokio::test]
async fn the_operator_changes_campaigns_and_the_scale_of_two_deployments_and_nothing_else() {
    let rendered = render(DEV, RUNNING).await.unwrap();
    let mut roles = rendered.of_kind("ClusterRole");
    roles.extend(rendered.of_kind("Role"));
    assert_eq!(
        allowed(&roles),
        [
            "create events",
            "create leases",
            "get couponcampaigns",
            "get couponcampaigns/status",
            "get deployments/scale",
            "get leases",
            "list couponcampaigns",
            "patch couponcampaigns",
            "patch couponcampaigns/status",
            "patch deployments/scale",
            "patch events",
            "update leases",
            "watch couponcampaigns",
        ]
    );
    for rule in roles.iter().filter_map(|role| role["rules"].as_array()).flatten() {
        let text = rule.to_string();
        assert!(!text.contains("\"*\""), "{text}");
        if text.contains("deployments") {
            assert_eq!(rule["resourceNames"].as_array().unwrap().len(), 2, "{text}");
        }
    }
}

#[tokio::test]
async fn an_uninstall_may_only_take_the_finalizer_off() {
    for (values, kind, count) in [(DEV, "ClusterRole", 1), (PRODUCTION, "Role", 2)] {
        let rendered = render(values, &["aggregatedRoles=false"]).await.unwrap();
        let hooks: Vec<&Value> = rendered
            .objects
            .iter()
            .filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "post-delete")
            .collect();
        let roles: Vec<&Value> = hooks.iter().copied().filter(|object| object["kind"] == kind).collect();
        assert_eq!(roles.len(), count, "{values}");
        assert_eq!(
            allowed(&roles),
            ["get couponcampaigns", "list couponcampaigns", "patch couponcampaigns"]
        );
        // The account and its rights are there before the Job.
        for hook in hooks {
            let weight = hook["metadata"]["annotations"]["helm.sh/hook-weight"].as_str();
            assert_eq!(weight.is_none(), hook["kind"] == "Job", "{hook}");
        }
    }
}
