//! Every object is what Kubernetes understands: a field that its types do not know would be refused, or dropped in
//! silence.

use e2e::chart::render;
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Pod, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{DEV, PRODUCTION, REDIS_CLUSTER};

/// Fields that are not there any more after a round through the type.
fn lost(path: &str, before: &Value, after: &Value) -> Vec<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before
            .iter()
            .filter(|(_, value)| !value.is_null())
            .flat_map(|(key, value)| {
                let path = format!("{path}.{key}");
                match after.get(key) {
                    Some(after) => lost(&path, value, after),
                    None => vec![path],
                }
            })
            .collect(),
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => before
            .iter()
            .zip(after)
            .enumerate()
            .flat_map(|(i, (before, after))| lost(&format!("{path}[{i}]"), before, after))
            .collect(),
        _ if before == after => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

fn check<T: DeserializeOwned + Serialize>(object: &Value) {
    let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let after = serde_json::to_value(typed).unwrap();
    assert_eq!(lost("", object, &after), Vec::<String>::new(), "{name}");
}

#[tokio::test]
async fn kubernetes_knows_every_field() {
    for values in [DEV, PRODUCTION, REDIS_CLUSTER] {
        let rendered = render(values, &[]).await.unwrap();
        for object in &rendered.objects {
            match object["kind"].as_str().unwrap() {
                "ClusterRole" => check::<ClusterRole>(object),
                "ClusterRoleBinding" => check::<ClusterRoleBinding>(object),
                "Deployment" => check::<Deployment>(object),
                "Job" => check::<Job>(object),
                "NetworkPolicy" => check::<NetworkPolicy>(object),
                "Pod" => check::<Pod>(object),
                "PodDisruptionBudget" => check::<PodDisruptionBudget>(object),
                "Role" => check::<Role>(object),
                "RoleBinding" => check::<RoleBinding>(object),
                "Service" => check::<Service>(object),
                "ServiceAccount" => check::<ServiceAccount>(object),
                // Checked elsewhere: the one against the Rust types, the other is not Kubernetes' own.
                "CustomResourceDefinition" | "PodMonitor" => {}
                kind => panic!("a new kind: {kind}"),
            }
        }
    }
}
