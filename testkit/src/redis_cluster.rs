//! A Redis Cluster of three primaries.

use std::time::{Duration, Instant};

use campaign::settings::{RedisMode, RedisSettings};
use tokio::sync::OnceCell;

use crate::{
    child::ServerError,
    ports::{find_port, where_free},
    proxy::Proxy,
    redis::{RedisOptions, RedisServer, connect, refused, settings},
};

const SERVER: &str = "Redis Cluster";
const UP_WITHIN: Duration = Duration::from_secs(120);
const SLOTS: u32 = 16_384;

/// Three primaries that share the slots. Dropping it kills them.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

static SHARED: OnceCell<RedisCluster> = OnceCell::const_new();

impl RedisCluster {
    /// The cluster that all tests of this process share.
    pub async fn shared() -> Result<&'static Self, ServerError> {
        SHARED.get_or_try_init(Self::start).await
    }

    /// A cluster of one's own.
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_with(RedisOptions::default()).await
    }

    /// A cluster of one's own, each node set up as told.
    pub async fn start_with(options: RedisOptions) -> Result<Self, ServerError> {
        let options = [options.clone(), options.clone(), options];
        Ok(Self {
            nodes: form(options).await?,
        })
    }

    /// A cluster whose nodes tell their clients the port of a proxy, one each: nobody passes them by.
    pub async fn behind_proxies() -> Result<(Self, Vec<Proxy>), ServerError> {
        let mut proxies = Vec::new();
        let mut options = Vec::new();
        for _ in 0..3 {
            let port = find_port(SERVER)?;
            let proxy = Proxy::to(port).await.map_err(io_error("start a proxy"))?;
            let mut node = RedisOptions::default().with("cluster-announce-port", &proxy.port().to_string());
            node.port = Some(port);
            options.push(node);
            proxies.push(proxy);
        }
        let nodes = form(options).await?;
        Ok((Self { nodes }, proxies))
    }

    /// The nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The nodes, to stop or freeze one.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Settings that point at it.
    pub fn settings(&self) -> RedisSettings {
        settings(RedisMode::Cluster, self.nodes.iter().map(RedisServer::url).collect())
    }
}

async fn form(options: impl IntoIterator<Item = RedisOptions>) -> Result<Vec<RedisServer>, ServerError> {
    let mut nodes = Vec::new();
    let mut bus_ports = Vec::new();
    for options in options {
        let (node, bus) = start_node(&options).await?;
        nodes.push(node);
        bus_ports.push(bus);
    }
    let count = nodes.len() as u32;
    for (i, node) in (0..).zip(&nodes) {
        let slots = redis::cmd("CLUSTER")
            .arg("ADDSLOTSRANGE")
            .arg(SLOTS * i / count)
            .arg(SLOTS * (i + 1) / count - 1)
            .to_owned();
        run(node, &slots).await?;
        // Different epochs from the start: else the nodes first have to settle who is who.
        run(node, redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(i + 1)).await?;
    }
    for (node, bus) in nodes.iter().zip(&bus_ports).skip(1) {
        let meet = redis::cmd("CLUSTER")
            .arg("MEET")
            .arg("127.0.0.1")
            .arg(node.port())
            .arg(*bus)
            .to_owned();
        run(&nodes[0], &meet).await?;
    }
    let deadline = Instant::now() + UP_WITHIN;
    for node in &nodes {
        loop {
            let info = info(node).await?;
            if info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{count}")) {
                break;
            }
            if Instant::now() > deadline {
                return Err(ServerError::NotUp {
                    server: SERVER,
                    reason: format!("node {} is not ok within {UP_WITHIN:?}", node.port()),
                    log: info,
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(nodes)
}

/// A node that is alone yet, and the port of its bus.
async fn start_node(options: &RedisOptions) -> Result<(RedisServer, u16), ServerError> {
    where_free(ServerError::has_ended, async || {
        // Else the bus would take port + 10000, which may be somebody's.
        let bus = find_port(SERVER)?;
        let options = options
            .clone()
            .with("cluster-enabled", "yes")
            .with("cluster-port", &bus.to_string())
            // Far longer than a busy machine takes to answer: no node is called failed.
            .with("cluster-node-timeout", "30000")
            .with("cluster-config-file", "nodes.conf");
        Ok((RedisServer::start_with(options).await?, bus))
    })
    .await
}

async fn run(node: &RedisServer, command: &redis::Cmd) -> Result<(), ServerError> {
    let run = async {
        let mut connection = connect(&node.url()).await?;
        command.exec_async(&mut connection).await
    };
    run.await.map_err(refused("join the cluster"))
}

async fn info(node: &RedisServer) -> Result<String, ServerError> {
    let ask = async {
        let mut connection = connect(&node.url()).await?;
        redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await
    };
    ask.await.map_err(refused("tell the cluster's state"))
}

fn io_error(what: &'static str) -> impl Fn(std::io::Error) -> ServerError {
    move |source| ServerError::Io {
        server: SERVER,
        what,
        source,
    }
}
