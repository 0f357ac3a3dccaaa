//! The whole system in a kind cluster, as `e2e/run.sh` sets it up: one release, with Redis, Kafka and Postgres beside it.
//!
//! One test at a time (they share the door, the workers and their replicas); each has a namespace and a campaign of its
//! own, and leaves the release as it found it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backlog;
mod deletion;
mod flushed;
mod killed;
mod operator_away;
mod quantity;
mod refused;
mod release;
mod sale;
mod window;

use std::time::Duration;

use e2e::{
    burst::NAMESPACE,
    campaign::SOON,
    command::{CommandError, run},
    eventually::eventually,
    kubectl,
};
use serde_json::Value;

/// The cluster's node, a container.
const NODE: &str = "coupon-e2e-control-plane";
/// A rebuild waits out the publish timeout, and the operator looks every so often.
const REBUILT: Duration = Duration::from_secs(90);
/// A burst's last claims, swept and persisted.
const SETTLED: Duration = Duration::from_secs(120);
/// Pods are scheduled and start.
const PODS: Duration = Duration::from_secs(120);

/// Pods that a Deployment of the release is scaled to.
async fn replicas(component: &str) -> Result<i64, CommandError> {
    let name = format!("coupon-{component}");
    let deployment = kubectl::get(NAMESPACE, "deployment", &name).await?.unwrap_or_default();
    Ok(deployment["spec"]["replicas"].as_i64().unwrap_or_default())
}

/// Waits until a Deployment is scaled so.
async fn replicas_until(limit: Duration, component: &str, wanted: impl Fn(i64) -> bool) -> i64 {
    eventually(limit, format!("{component} is scaled"), async || {
        match replicas(component).await {
            Ok(count) if wanted(count) => Ok(Some(count)),
            Ok(count) => Err(format!("it has {count}")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

/// Waits until a component has so many ready pods.
async fn ready_pods_until(component: &str, wanted: usize) -> Vec<String> {
    eventually(PODS, format!("{wanted} ready pods of {component}"), async || {
        let pods = kubectl::ready_pods(NAMESPACE, component).await?;
        Ok::<_, CommandError>((pods.len() >= wanted).then_some(pods))
    })
    .await
}

/// Kills the process of a pod (SIGKILL), which has no time to say anything. A deleted pod would have some, whatever the grace
/// period. The pod stays, with another process.
async fn kill_pod(component: &str, pod: &str) {
    let script = format!(
        "id=$(crictl ps --quiet --name '^{component}$' --label io.kubernetes.pod.name={pod})
         kill -KILL $(crictl inspect --output go-template --template '{{{{.info.pid}}}}' $id)"
    );
    run("docker", &["exec", NODE, "sh", "-ec", &script], None)
        .await
        .expect("the pod's process is killed");
}

/// Runs a command in a server's pod.
async fn in_server(server: &str, command: &[&str]) -> String {
    let target = format!("deployment/coupon-{server}");
    let mut arguments = vec!["-n", NAMESPACE, "exec", &target, "--"];
    arguments.extend(command);
    kubectl::kubectl(&arguments).await.expect("the server's pod runs it")
}

/// The lease of who leads the operators.
async fn lease() -> Result<Value, CommandError> {
    let lease = kubectl::get(NAMESPACE, "lease", "coupon-operator").await?;
    Ok(lease.unwrap_or_default())
}

/// Who leads the operators by this lease.
fn leader_of(lease: &Value) -> Option<String> {
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    (!holder.is_empty()).then(|| holder.to_owned())
}

/// Who leads the operators.
async fn leader() -> String {
    eventually(SOON, "somebody leads", async || {
        Ok::<_, CommandError>(leader_of(&lease().await?))
    })
    .await
}
