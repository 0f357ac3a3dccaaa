//! A primary, its replica, and sentinels that promote the replica.

use std::{
    ffi::OsString,
    fs, io,
    time::{Duration, Instant},
};

use campaign::settings::{RedisMode, RedisSettings};
use tempfile::TempDir;

use crate::{
    child::{Launch, ServerError, ServerProcess, find_program},
    ports::{find_port, where_free},
    redis::{RedisOptions, RedisServer, connect, ping, refused, settings},
};

const SERVER: &str = "Redis Sentinel";
const UP_WITHIN: Duration = Duration::from_secs(120);
const MASTER: &str = "coupon";

/// Two servers and their sentinels. Dropping it kills them.
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    _process: ServerProcess,
    _folder: TempDir,
}

impl RedisSentinel {
    /// One sentinel, whose word is enough.
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_with(RedisOptions::default(), 1).await
    }

    /// So many sentinels (more than half of them must agree), both servers set up as told.
    pub async fn start_with(options: RedisOptions, sentinels: usize) -> Result<Self, ServerError> {
        // A replica gets its first copy at once.
        let options = options.with("repl-diskless-sync-delay", "0");
        let primary = RedisServer::start_with(options.clone()).await?;
        let replica = RedisServer::start_with(options.replica_of(primary.port())).await?;
        let mut group = Self {
            servers: [primary, replica],
            sentinels: Vec::new(),
        };
        let (primary, quorum) = (group.servers[0].port(), sentinels / 2 + 1);
        for _ in 0..sentinels {
            let sentinel = where_free(ServerError::has_ended, || Sentinel::start(primary, quorum)).await?;
            group.sentinels.push(sentinel);
        }
        group.wait_until_complete().await?;
        Ok(group)
    }

    /// Until every sentinel knows the replica, in sync, and all other sentinels: before that, none can fail over.
    async fn wait_until_complete(&self) -> Result<(), ServerError> {
        let others = self.sentinels.len().saturating_sub(1);
        let wanted = [
            ("flags", "master".to_owned()),
            ("num-slaves", "1".to_owned()),
            ("num-other-sentinels", others.to_string()),
        ];
        for sentinel in &self.sentinels {
            wait(
                &format!("the sentinel at {} knows everybody", sentinel.port),
                async || {
                    let master: Vec<String> = sentinel.ask(redis::cmd("SENTINEL").arg("MASTER").arg(MASTER)).await?;
                    let replicas: Vec<Vec<String>> =
                        sentinel.ask(redis::cmd("SENTINEL").arg("REPLICAS").arg(MASTER)).await?;
                    let known = wanted.iter().all(|(name, value)| field(&master, name) == Some(value));
                    let in_sync = replicas.iter().all(|replica| {
                        field(replica, "master-link-status") == Some("ok") && field(replica, "flags") == Some("slave")
                    });
                    Ok(known && in_sync)
                },
            )
            .await?;
        }
        Ok(())
    }

    /// Settings that point at the sentinels.
    pub fn settings(&self) -> RedisSettings {
        let urls = self
            .sentinels
            .iter()
            .map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port))
            .collect();
        RedisSettings {
            redis_sentinel_master: MASTER.to_owned(),
            ..settings(RedisMode::Sentinel, urls)
        }
    }

    /// Both servers, whichever leads.
    pub fn servers_mut(&mut self) -> &mut [RedisServer; 2] {
        &mut self.servers
    }

    /// The server that the first sentinel calls the primary.
    pub async fn primary(&self) -> Result<&RedisServer, ServerError> {
        let port = self.primary_port().await?;
        let found = self.servers.iter().find(|server| server.port() == port);
        found.ok_or_else(|| {
            io_error("find the primary")(io::Error::other(format!(
                "the sentinel names port {port}, which is neither's"
            )))
        })
    }

    async fn primary_port(&self) -> Result<u16, ServerError> {
        let address: (String, u16) = self.sentinels[0]
            .ask(redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER))
            .await
            .map_err(refused("name the primary"))?;
        Ok(address.1)
    }

    /// Makes the replica the primary, in order (the old one becomes its replica), and waits until both follow.
    pub async fn failover(&self) -> Result<(), ServerError> {
        let old = self.primary_port().await?;
        wait("a failover begins", async || {
            let begun: redis::RedisResult<()> = self.sentinels[0]
                .ask(redis::cmd("SENTINEL").arg("FAILOVER").arg(MASTER))
                .await;
            match begun {
                Ok(()) => Ok(true),
                // INPROG, NOGOODSLAVE: it has not yet heard of the end of the last one.
                Err(error) if error.code().is_some() => Ok(false),
                Err(error) => Err(error),
            }
        })
        .await?;
        self.wait_until_failed_over(old).await
    }

    /// Kills the primary and waits until the sentinels have promoted the replica: what it had not yet got is lost.
    pub async fn kill_primary(&mut self) -> Result<(), ServerError> {
        let old = self.primary_port().await?;
        if let Some(primary) = self.servers.iter_mut().find(|server| server.port() == old) {
            primary.stop();
        }
        self.wait_until_failed_over(old).await
    }

    async fn wait_until_failed_over(&self, old: u16) -> Result<(), ServerError> {
        wait("the sentinels name the other server", async || {
            let address: (String, u16) = self.sentinels[0]
                .ask(redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER))
                .await?;
            if address.1 == old {
                return Ok(false);
            }
            let mut connection = connect(&format!("redis://127.0.0.1:{}", address.1)).await?;
            let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
            Ok(role.first() == Some(&redis::Value::BulkString(b"master".to_vec())))
        })
        .await
    }
}

impl Sentinel {
    async fn start(primary: u16, quorum: usize) -> Result<Self, ServerError> {
        let program = find_program(SERVER, "redis-server", &[])?;
        let port = find_port(SERVER)?;
        let folder = tempfile::Builder::new()
            .prefix("coupon-sentinel-")
            .tempdir()
            .map_err(io_error("make the folder"))?;
        let config = format!(
            "port {port}\nbind 127.0.0.1\n\
             sentinel monitor {MASTER} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {MASTER} 10000\n\
             sentinel failover-timeout {MASTER} 5000\n"
        );
        fs::write(folder.path().join("sentinel.conf"), config).map_err(io_error("write the configuration"))?;
        let mut process = ServerProcess::launch(Launch {
            server: SERVER,
            command: vec![
                program.into_os_string(),
                OsString::from("sentinel.conf"),
                OsString::from("--sentinel"),
            ],
            environment: Vec::new(),
            folder: folder.path(),
            remove_folder: true,
            user: None,
        })?;
        let url = format!("redis://127.0.0.1:{port}");
        process
            .wait_until_up(UP_WITHIN, async || ping(&url).await.map_err(|error| error.to_string()))
            .await?;
        Ok(Self {
            port,
            _process: process,
            _folder: folder,
        })
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> redis::RedisResult<T> {
        let mut connection = connect(&format!("redis://127.0.0.1:{}", self.port)).await?;
        command.query_async(&mut connection).await
    }
}

/// A field of the flat name-value lists that sentinels answer.
fn field<'a>(answer: &'a [String], name: &str) -> Option<&'a str> {
    answer
        .chunks_exact(2)
        .find(|pair| pair[0] == name)
        .map(|pair| pair[1].as_str())
}

async fn wait(what: &str, mut condition: impl AsyncFnMut() -> redis::RedisResult<bool>) -> Result<(), ServerError> {
    let deadline = Instant::now() + UP_WITHIN;
    loop {
        let seen = match condition().await {
            Ok(true) => return Ok(()),
            Ok(false) => "not so".to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            return Err(ServerError::Refused {
                server: SERVER,
                what: "come to a state",
                reason: format!("not within {UP_WITHIN:?}: {what}; last seen: {seen}"),
            });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::Io {
        server: SERVER,
        what,
        source,
    }
}
