//! Users who claim from inside the cluster: a Job that loads the door, keeps who was told SUCCESS, and audits that each of
//! them, and nobody else, has a coupon.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    campaign::Campaign,
    chart::RELEASE,
    command::CommandError,
    eventually::eventually,
    kubectl::{apply, get, kubectl},
};

/// Where the release is.
pub const NAMESPACE: &str = "coupon";
/// No burst lasts longer, its audit included.
const LIMIT: Duration = Duration::from_secs(450);

/// A burst that is under way.
#[derive(Debug)]
pub struct Burst {
    job: String,
}

impl Burst {
    /// Starts one: so many users, so many a second (0: as fast as they are served). With `audit`, who was told SUCCESS is
    /// compared with the rows afterwards: right for the first burst of a campaign.
    pub async fn start(campaign: &Campaign, users: u32, rate: u32, audit: bool) -> Result<Self, CommandError> {
        let worker = get(NAMESPACE, "deployment", &format!("{RELEASE}-worker"))
            .await?
            .unwrap_or_default();
        let container = &worker["spec"]["template"]["spec"]["containers"][0];
        let job = format!("burst-{}-{}", campaign.namespace, campaign.name);
        let rate = if rate > 0 {
            format!("--rate {rate}")
        } else {
            String::new()
        };
        let name = campaign.full_name();
        let successes = if audit { "--successes /told/successes.tsv" } else { "" };
        let script = format!(
            "coupon --log warn load --url http://{RELEASE}-intake --campaign {name} --users {users} {rate} \
             --connections 64 --within 4m --successes /told/successes.tsv\n\
             coupon --log warn audit --campaign {name} --settle-within 150s {successes}"
        );
        kubectl(&["-n", NAMESPACE, "delete", "job", &job, "--ignore-not-found"]).await?;
        apply(&json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job, "namespace": NAMESPACE},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": LIMIT.as_secs(),
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "enableServiceLinks": false,
                    "containers": [{
                        "name": "burst",
                        "image": container["image"],
                        "command": ["bash", "-ec", script],
                        "env": container["env"],
                        "volumeMounts": [{"name": "told", "mountPath": "/told"}],
                    }],
                    "volumes": [{"name": "told", "emptyDir": {}}],
                    "securityContext": {"fsGroup": 65532},
                }},
            },
        }))
        .await?;
        let burst = Self { job };
        eventually(Duration::from_secs(60), format!("{} runs", burst.job), async || {
            let job = get(NAMESPACE, "job", &burst.job).await?.unwrap_or_default();
            let status = &job["status"];
            let begun = status["ready"].as_i64() > Some(0) || has_ended(status).is_some();
            Ok::<_, CommandError>(begun.then_some(()))
        })
        .await;
        Ok(burst)
    }

    /// Waits for its end and answers what it printed.
    ///
    /// # Panics
    /// When a user got no outcome, or the audit found something.
    pub async fn finish(self) -> Result<String, CommandError> {
        let succeeded = eventually(LIMIT, format!("{} ends", self.job), async || {
            let job = get(NAMESPACE, "job", &self.job).await?.unwrap_or_default();
            Ok::<_, CommandError>(has_ended(&job["status"]))
        })
        .await;
        let said = kubectl(&["-n", NAMESPACE, "logs", &format!("job/{}", self.job)]).await?;
        assert!(succeeded, "{} failed: {said}", self.job);
        println!("{said}");
        Ok(said)
    }
}

/// Whether it succeeded; `None`: it has not ended.
fn has_ended(status: &Value) -> Option<bool> {
    status["conditions"]
        .as_array()?
        .iter()
        .filter(|condition| condition["status"] == "True")
        .find_map(|condition| match condition["type"].as_str()? {
            "Complete" => Some(true),
            "Failed" => Some(false),
            _ => None,
        })
}

/// Users with that outcome, as the load counted them.
pub fn outcome(said: &str, name: &str) -> u64 {
    said.lines()
        .find(|line| line.starts_with("users "))
        .and_then(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != name);
            words.next();
            words.next()?.parse().ok()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_from_what_a_load_prints() {
        let said = "latency  p50 1 ms\nanswers  SUCCESS 12 SOLD_OUT 88\nusers    SOLD_OUT 90 SUCCESS 10";
        assert_eq!(outcome(said, "SUCCESS"), 10);
        assert_eq!(outcome(said, "SOLD_OUT"), 90);
        assert_eq!(outcome(said, "CLOSED"), 0);
    }

    #[test]
    fn a_job_has_ended_when_a_condition_says_so() {
        for (status, ended) in [
            (json!({"active": 1}), None),
            (
                json!({"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}),
                None,
            ),
            (
                json!({"conditions": [{"type": "Complete", "status": "True"}]}),
                Some(true),
            ),
            (
                json!({"conditions": [{"type": "Failed", "status": "True"}]}),
                Some(false),
            ),
        ] {
            assert_eq!(has_ended(&status), ended, "{status}");
        }
    }
}
