//! Servers end with the process that launched them, however it ends.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use testkit::{
    eventually::eventually, installation::TestInstallation, kafka::KafkaServer, postgres::PostgresServer,
    redis::RedisServer,
};

const MARK: &str = "servers: ";

/// Not a test: the process that the test below kills. It says what it launched and waits to be killed.
#[tokio::test]
#[ignore = "run by the test below, in a process of its own"]
async fn launches_all_servers_and_waits() {
    TestInstallation::start().await.unwrap();
    RedisServer::shared().await.unwrap().freeze().unwrap();
    let pids = [
        RedisServer::shared().await.unwrap().pid().unwrap(),
        KafkaServer::shared().await.unwrap().pid().unwrap(),
        PostgresServer::shared().await.unwrap().pid().unwrap(),
    ];
    println!("{MARK}{} {} {}", pids[0], pids[1], pids[2]);
    std::future::pending::<()>().await;
}

/// Neither gone nor a zombie that nobody has reaped.
fn runs(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}

#[tokio::test]
async fn servers_and_their_folders_are_gone_when_their_parent_is_killed() {
    let folders = tempfile::tempdir().unwrap();
    // Postgres runs as another user, who must get in.
    std::fs::set_permissions(folders.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "parent::launches_all_servers_and_waits",
            "--ignored",
            "--nocapture",
        ])
        .env("TMPDIR", folders.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let said = tokio::task::spawn_blocking(|| {
        lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once(MARK)?.1.to_owned()))
    });
    let pids = said.await.unwrap().unwrap();
    let pids: Vec<&str> = pids.split(' ').collect();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|pid| runs(pid)), "{pids:?}");

    parent.kill().unwrap();
    parent.wait().unwrap();
    eventually(Duration::from_secs(20), "all servers are gone", async || {
        !pids.iter().any(|pid| runs(pid))
    })
    .await;
    eventually(Duration::from_secs(20), "their folders are gone", async || {
        std::fs::read_dir(folders.path()).unwrap().next().is_none()
    })
    .await;
}
