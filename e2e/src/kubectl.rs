//! kubectl, as people use it.

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

use crate::command::{CommandError, run};

/// Runs kubectl.
pub async fn kubectl(arguments: &[&str]) -> Result<String, CommandError> {
    run("kubectl", arguments, None).await
}

/// Reads one object; `None`: it is not there.
pub async fn get(namespace: &str, kind: &str, name: &str) -> Result<Option<Value>, CommandError> {
    let text = kubectl(&["-n", namespace, "get", kind, name, "--ignore-not-found", "-o", "json"]).await?;
    Ok(serde_json::from_str(&text).ok())
}

/// Reads all objects that a selector finds.
pub async fn list(namespace: &str, kind: &str, selector: &str) -> Result<Vec<Value>, CommandError> {
    let text = kubectl(&["-n", namespace, "get", kind, "-l", selector, "-o", "json"]).await?;
    let found: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(found["items"].as_array().cloned().unwrap_or_default())
}

/// Applies one object.
pub async fn apply(object: &Value) -> Result<String, CommandError> {
    run("kubectl", &["apply", "-f", "-"], Some(&object.to_string())).await
}

/// Pods of a component of the release that are ready.
pub async fn ready_pods(namespace: &str, component: &str) -> Result<Vec<String>, CommandError> {
    let pods = list(namespace, "pods", &format!("app.kubernetes.io/component={component}")).await?;
    let ready = pods.iter().filter(|pod| {
        pod["metadata"].get("deletionTimestamp").is_none()
            && pod["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    });
    Ok(ready
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// A namespace of a test. It goes, with all campaigns in it, when the test ends, however it ends.
#[derive(Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl Namespace {
    /// Makes one of which nobody has heard.
    pub async fn create(purpose: &str) -> Result<Self, CommandError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{purpose}-{}-{count}", std::process::id());
        apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
        Ok(Self { name })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nobody waits for it: its campaigns drain beside the next test.
        let deleted = Command::new("kubectl")
            .args(["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"])
            .output();
        if let Err(error) = deleted {
            eprintln!("namespace {} is left behind: {error}", self.name);
        }
    }
}
