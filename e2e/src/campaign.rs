//! Campaigns as the API server has them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    command::{CommandError, run},
    eventually::eventually,
    kubectl::{apply, get, kubectl},
};

/// How long the operator may take to put something in force that needs no rebuild.
pub const SOON: Duration = Duration::from_secs(60);

/// A campaign of a test.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Where.
    pub namespace: String,
    /// What it is called there.
    pub name: String,
}

impl Campaign {
    /// Applies a campaign with this spec and waits until it is as wanted.
    pub async fn start(namespace: &str, name: &str, spec: Value) -> Result<Self, CommandError> {
        let campaign = Self::named(namespace, name);
        campaign.apply(spec).await?;
        campaign.ready().await;
        Ok(campaign)
    }

    /// Applies a file of `examples/` as it is.
    pub async fn example(namespace: &str, file: &str) -> Result<Self, CommandError> {
        let path = format!("examples/{file}.yaml");
        run("kubectl", &["-n", namespace, "apply", "-f", &path], None).await?;
        Ok(Self::named(namespace, file))
    }

    /// One that is there, or will be.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Applies it with this spec.
    pub async fn apply(&self, spec: Value) -> Result<(), CommandError> {
        apply(&json!({
            "apiVersion": "coupon-operator.dev/v1alpha1",
            "kind": "CouponCampaign",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": spec,
        }))
        .await
        .map(drop)
    }

    /// Changes some of its spec.
    pub async fn change(&self, spec: Value) -> Result<(), CommandError> {
        let patch = json!({"spec": spec}).to_string();
        let arguments = [
            "-n",
            &self.namespace,
            "patch",
            "ccamp",
            &self.name,
            "--type=merge",
            "-p",
            &patch,
        ];
        kubectl(&arguments).await.map(drop)
    }

    /// The object; `None`: it is gone.
    pub async fn read(&self) -> Result<Option<Value>, CommandError> {
        get(&self.namespace, "ccamp", &self.name).await
    }

    /// Deletes it and waits until it is gone.
    pub async fn delete(&self, limit: Duration) -> Result<(), CommandError> {
        let limit = format!("--timeout={}s", limit.as_secs());
        kubectl(&["-n", &self.namespace, "delete", "ccamp", &self.name, &limit])
            .await
            .map(drop)
    }

    /// Waits until the status says what is wanted, about the spec as it is now; answers it.
    pub async fn until(&self, limit: Duration, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let what = format!("{} {what}", self.full_name());
        let waited = tokio::time::timeout(limit, async {
            loop {
                if let Ok(Some(object)) = self.read().await {
                    last = object["status"].clone();
                    let observed = last["observedGeneration"] == object["metadata"]["generation"];
                    if observed && wanted(&last) {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        let in_time = waited.await.is_ok();
        assert!(in_time, "not within {limit:?}: {what}; its status: {last:#}");
        last
    }

    /// Waits until it is as its spec wants it.
    pub async fn ready(&self) -> Value {
        self.until(SOON, "is ready", |status| condition(status, "Ready") == "True")
            .await
    }

    /// Waits until so many coupons are issued and every other slot is free. The number is asked for because the status
    /// is some seconds old: before a burst it was settled, too.
    pub async fn settled(&self, limit: Duration, issued: i64) -> Value {
        let status = self
            .until(limit, &format!("is settled with {issued} coupons"), |status| {
                let number = |field: &str| status[field].as_i64();
                number("pending") == Some(0) && number("taken") == Some(issued) && number("issued") == Some(issued)
            })
            .await;
        let number = |field: &str| status[field].as_i64().unwrap_or_default();
        assert_eq!(
            number("quantity"),
            number("available") + number("issued") + number("parked"),
            "the equation of {}: {status:#}",
            self.full_name()
        );
        status
    }

    /// Waits for an event of that reason about it.
    pub async fn event(&self, reason: &str) {
        let selector = format!("involvedObject.name={},reason={reason}", self.name);
        eventually(SOON, format!("event {reason} of {}", self.full_name()), async || {
            let found = kubectl(&[
                "-n",
                &self.namespace,
                "get",
                "events",
                "--field-selector",
                &selector,
                "-o",
                "name",
            ])
            .await?;
            Ok::<_, CommandError>((!found.trim().is_empty()).then_some(()))
        })
        .await;
    }
}

/// The status of a condition; empty if there is none.
pub fn condition<'a>(status: &'a Value, kind: &str) -> &'a str {
    find(status, kind)
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or_default()
}

/// The reason of a condition; empty if there is none.
pub fn reason<'a>(status: &'a Value, kind: &str) -> &'a str {
    find(status, kind)
        .and_then(|condition| condition["reason"].as_str())
        .unwrap_or_default()
}

fn find<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}
