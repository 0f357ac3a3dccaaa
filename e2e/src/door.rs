//! Single claims, through the node's port of the intake's Service.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    burst::NAMESPACE,
    campaign::Campaign,
    chart::RELEASE,
    command::CommandError,
    eventually::eventually,
    kubectl::{get, kubectl},
};

/// The door, as somebody outside of the cluster sees it.
#[derive(Debug)]
pub struct Door {
    http: reqwest::Client,
    url: String,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The cluster.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The network.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

impl Door {
    /// Finds it.
    pub async fn find() -> Result<Self, DoorError> {
        let service = get(NAMESPACE, "service", &format!("{RELEASE}-intake"))
            .await?
            .unwrap_or_default();
        let port = &service["spec"]["ports"][0]["nodePort"];
        let address = kubectl(&[
            "get",
            "nodes",
            "-o",
            "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}",
        ])
        .await?;
        Ok(Self {
            http: reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?,
            url: format!("http://{}:{port}", address.trim()),
        })
    }

    async fn claim(&self, campaign: &Campaign, user: &str, key: Option<&str>) -> Result<String, DoorError> {
        let body = json!({"campaign": campaign.full_name(), "userId": user}).to_string();
        let mut request = self
            .http
            .post(format!("{}/coupon-issues", self.url))
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let answer: Value = request.body(body).send().await?.json().await?;
        let word = answer["result"].as_str().or(answer["code"].as_str());
        Ok(word.unwrap_or("no answer").to_owned())
    }

    /// Claims for that user until the answer is the one that is wanted: `SUCCESS`, `SOLD_OUT`, …. Who wants a SUCCESS asks
    /// for the same coupon each time: an answer may be lost on its way.
    pub async fn claim_until(&self, limit: Duration, campaign: &Campaign, user: &str, wanted: &str) {
        let key = (wanted == "SUCCESS").then_some(user);
        eventually(
            limit,
            format!("{user} gets {wanted} of {}", campaign.full_name()),
            async || match self.claim(campaign, user, key).await {
                Ok(answer) if answer == wanted => Ok(Some(())),
                Ok(answer) => Err(format!("the last answer was {answer}")),
                Err(error) => Err(error.to_string()),
            },
        )
        .await;
    }
}
