//! The chart: rendered, installed, upgraded.

use serde_json::Value;

use crate::command::{CommandError, run};

/// The release of the tests, and its namespace.
pub const RELEASE: &str = "coupon";

/// Runs helm.
pub async fn helm(arguments: &[&str]) -> Result<String, CommandError> {
    run("helm", arguments, None).await
}

/// What the chart renders: with a values file of `charts/coupon`, and `--set`s over it.
pub async fn render(values: &str, sets: &[&str]) -> Result<Rendered, CommandError> {
    let text = offline(&["template"], values, sets).await?;
    let objects = serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap_or(Value::Null))
        .filter(|object: &Value| !object.is_null())
        .collect();
    Ok(Rendered { objects })
}

/// What an install prints at its end.
pub async fn notes(values: &str, sets: &[&str]) -> Result<String, CommandError> {
    let text = offline(&["install", "--dry-run=client"], values, sets).await?;
    Ok(text
        .split_once("NOTES:")
        .map_or_else(String::new, |(_, notes)| notes.to_owned()))
}

/// A command of helm about the release that needs no cluster.
async fn offline(command: &[&str], values: &str, sets: &[&str]) -> Result<String, CommandError> {
    let values = format!("charts/coupon/{values}");
    let mut arguments = command.to_vec();
    arguments.extend([RELEASE, "charts/coupon", "--namespace", "coupon", "--values", &values]);
    for set in sets {
        arguments.extend(["--set-json", set]);
    }
    helm(&arguments).await
}

/// Objects of a rendered chart.
#[derive(Debug)]
pub struct Rendered {
    /// In the order of the files.
    pub objects: Vec<Value>,
}

impl Rendered {
    /// All of a kind.
    pub fn of_kind(&self, kind: &str) -> Vec<&Value> {
        self.objects.iter().filter(|object| object["kind"] == kind).collect()
    }

    /// The one of that kind and name.
    pub fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of_kind(kind)
            .into_iter()
            .find(|object| object["metadata"]["name"] == name)
    }

    /// The pod templates of Deployments and Jobs, and Pods themselves, by the name of their owner.
    pub fn pods(&self) -> Vec<(&str, &Value)> {
        self.objects
            .iter()
            .filter_map(|object| {
                let name = object["metadata"]["name"].as_str()?;
                match object["kind"].as_str()? {
                    "Deployment" | "Job" => Some((name, &object["spec"]["template"]["spec"])),
                    "Pod" => Some((name, &object["spec"])),
                    _ => None,
                }
            })
            .collect()
    }
}

/// The value of an environment variable of a container: plain, or `secret/key`.
pub fn variable(container: &Value, name: &str) -> Option<String> {
    let variable = container["env"]
        .as_array()?
        .iter()
        .find(|entry| entry["name"] == name)?;
    let secret = &variable["valueFrom"]["secretKeyRef"];
    match (
        variable["value"].as_str(),
        secret["name"].as_str(),
        secret["key"].as_str(),
    ) {
        (Some(value), ..) => Some(value.to_owned()),
        (None, Some(secret), Some(key)) => Some(format!("{secret}/{key}")),
        _ => None,
    }
}
