//! An intake as a process of its own, to be killed.

use std::{path::PathBuf, process::Stdio};

use testkit::{eventually::eventually, ports::free_port};
use tokio::process::{Child, Command};

use crate::chain::{Chain, Door, LIMIT};

pub struct IntakeProcess {
    pub door: Door,
    child: Child,
}

impl IntakeProcess {
    /// Starts the binary and waits until it is ready.
    pub async fn start(chain: &Chain, kafka_brokers: &str) -> Self {
        let (port, internal) = (free_port().unwrap(), free_port().unwrap());
        let installation = &chain.on.installation;
        let child = Command::new(binary("intake"))
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--internal-listen", &format!("127.0.0.1:{internal}")])
            .args(["--key-prefix", &installation.key_prefix])
            .args([
                "--publish-timeout",
                &format!("{}ms", installation.publish_timeout.as_millis()),
            ])
            .args([
                "--clock-margin",
                &format!("{}ms", installation.clock_margin.as_millis()),
            ])
            .arg("--dev")
            .args(["--redis-url", &chain.on.redis.redis_urls.join(",")])
            .args(["--kafka-brokers", kafka_brokers])
            .args(["--postgres-url", &chain.on.postgres.postgres_url])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let door = chain.door_at(port, internal);
        let client = reqwest::Client::new();
        eventually(LIMIT, "the intake's process is ready", async || {
            let url = format!("{}/readyz", door.internal_url);
            client.get(url).send().await.is_ok_and(|answer| answer.status() == 200)
        })
        .await;
        Self { door, child }
    }

    /// SIGKILL.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// A binary of this workspace, built beside this test.
fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(|deps| deps.parent()).unwrap().join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --workspace --bins`",
        path.display()
    );
    path
}
