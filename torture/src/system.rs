//! Servers, wires and processes of one run.

use std::{path::Path, time::Duration};

use campaign::settings::{InstallationSettings, PostgresSettings, RedisMode, RedisSettings};
use coupon::{
    connections::{Connections, InstallationArguments},
    given::without_flags,
};
use testkit::{
    child::ServerError,
    kafka::{KafkaOptions, KafkaServer},
    postgres::{FreshDatabase, PostgresServer},
    proxy::{Proxy, Treatment},
    redis::{RedisOptions, RedisServer, RedisSnapshot, RestartWith},
};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    clock::ClockShift,
    links::{Links, OWNER},
    plan::{INTAKES, Server, Target},
    process::{Process, times},
};

/// How long servers and processes may take to come up.
const UP_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why a system is not there.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A server or a process.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A setting from the environment.
    #[error("a setting is wrong: {0}")]
    Setting(#[from] clap::Error),
    /// The key prefix.
    #[error(transparent)]
    Prefix(#[from] campaign::naming::PrefixError),
    /// The topics.
    #[error(transparent)]
    Kafka(#[from] campaign::kafka::client::KafkaError),
    /// Connecting.
    #[error(transparent)]
    Connect(#[from] coupon::connections::ConnectError),
    /// A process that does not come up.
    #[error("{0:?} is not ready after {1:?}; its log is in the run's folder")]
    NotReady(Target, Duration),
}

/// A primary and its replica.
pub struct RedisPair {
    servers: [RedisServer; 2],
    /// The wire to each server that the other one follows it through.
    replication: [Proxy; 2],
    primary: usize,
    old: Option<RedisSnapshot>,
}

impl RedisPair {
    async fn start() -> Result<Self, ServerError> {
        // A rebuild waits for this long where a replica could take over: by default 10 s.
        let options = || RedisOptions::default().with("min-replicas-max-lag", "1");
        let servers = [
            RedisServer::start_with(options()).await?,
            RedisServer::start_with(options()).await?,
        ];
        let failed = |source| ServerError::Io {
            server: "a proxy",
            what: "start the listener",
            source,
        };
        let replication = [
            Proxy::to(servers[0].port()).await.map_err(failed)?,
            Proxy::to(servers[1].port()).await.map_err(failed)?,
        ];
        let pair = Self {
            servers,
            replication,
            primary: 0,
            old: None,
        };
        pair.follow().await?;
        Ok(pair)
    }

    /// The server that clients are led to.
    pub fn primary(&self) -> &RedisServer {
        &self.servers[self.primary]
    }

    async fn follow(&self) -> Result<(), ServerError> {
        let port = self.replication[self.primary].port();
        self.servers[1 - self.primary].follow(port).await
    }

    /// Keeps what it holds now, to be put back later.
    pub async fn keep(&mut self) -> Result<(), ServerError> {
        self.old = Some(self.primary().snapshot().await?);
        Ok(())
    }

    /// Kills the primary and starts it without anything.
    pub async fn restart_empty(&mut self) -> Result<(), ServerError> {
        self.servers[self.primary].restart(RestartWith::Nothing).await
    }

    /// Kills the primary and starts it with what was kept last.
    pub async fn restart_old(&mut self) -> Result<(), ServerError> {
        let with = match &self.old {
            Some(snapshot) => RestartWith::Snapshot(snapshot),
            None => RestartWith::Nothing,
        };
        self.servers[self.primary].restart(with).await
    }

    /// Starts whichever of them does not run.
    pub async fn heal(&mut self) -> Result<(), ServerError> {
        for server in &mut self.servers {
            if server.pid().is_none() {
                server.restart(RestartWith::Nothing).await?;
            }
        }
        self.follow().await
    }

    /// The replica hears nothing for `deaf`, the primary dies, the replica takes over, and the old primary follows it.
    pub async fn promote(&mut self, deaf: Duration, links: &Links) -> Result<(), ServerError> {
        self.replication[self.primary].replies(Treatment::Hold);
        tokio::time::sleep(deaf).await;
        let old = self.primary;
        self.servers[old].stop();
        self.servers[1 - old].promote().await?;
        self.replication[old].restore();
        self.primary = 1 - old;
        for link in links.to(Server::Redis) {
            link.proxy.lead_to(self.primary().port());
        }
        self.servers[old].restart(RestartWith::Nothing).await?;
        self.follow().await
    }
}

/// Everything of one run. Dropping it kills all of it.
pub struct System {
    /// Redis and its replica.
    pub redis: Mutex<RedisPair>,
    /// The broker.
    pub kafka: Mutex<KafkaServer>,
    /// The database server.
    pub postgres: Mutex<PostgresServer>,
    /// The wires.
    pub links: Links,
    /// Intakes, then workers.
    pub processes: Vec<Process>,
    /// Where the owner of the campaigns finds the servers: through wires of his own.
    pub arguments: InstallationArguments,
    shifts_clocks: bool,
    /// For probes.
    pub client: reqwest::Client,
}

impl System {
    /// Launches servers and lays wires; no process runs yet.
    pub async fn launch(name: &str, folder: &Path) -> Result<Self, SystemError> {
        let kafka_options = KafkaOptions {
            spare_listeners: crate::links::PARTIES,
            ..KafkaOptions::default()
        }
        // A stall makes it count as dead: for a moment it tells everybody that there is no broker.
        .with("broker.session.timeout.ms", "2000")
        .with("broker.heartbeat.interval.ms", "1500");
        let (redis, kafka, postgres) = tokio::try_join!(
            RedisPair::start(),
            KafkaServer::start_with(kafka_options),
            PostgresServer::start(),
        )?;
        let installation = InstallationSettings {
            key_prefix: name.to_owned(),
            publish_timeout: times::PUBLISH_TIMEOUT,
            clock_margin: times::CLOCK_MARGIN,
            dev: true,
            ..without_flags()?
        };
        campaign::kafka::topics::create(&kafka.settings(), &installation.naming()?, 1).await?;
        let database = postgres.fresh_database().await?;
        let links = Links::lay(redis.primary().port(), &kafka, postgres.port()).await?;
        let arguments_of = |party| arguments(&installation, &links, party, &database, postgres.port());
        let clock = folder
            .canonicalize()
            .ok()
            .and_then(|folder| ClockShift::compile(&folder));
        let processes = Target::all()
            .map(|target| Process::new(target, &arguments_of(target.index()), folder, clock.clone()))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            arguments: arguments_of(OWNER),
            redis: Mutex::new(redis),
            kafka: Mutex::new(kafka),
            postgres: Mutex::new(postgres),
            links,
            processes,
            shifts_clocks: clock.is_some(),
            client: reqwest::Client::new(),
        })
    }

    /// Whether clocks can be shifted here.
    pub fn shifts_clocks(&self) -> bool {
        self.shifts_clocks
    }

    /// Connections of the owner.
    pub async fn connect(&self) -> Result<Connections, SystemError> {
        Ok(self.arguments.connect().await?)
    }

    /// A process.
    pub fn process(&self, target: Target) -> &Process {
        &self.processes[target.index()]
    }

    /// The intakes.
    pub fn intakes(&self) -> &[Process] {
        &self.processes[..INTAKES]
    }

    /// Starts all processes and waits until they are ready.
    pub async fn start_processes(&self) -> Result<(), SystemError> {
        for process in &self.processes {
            process.start().await?;
        }
        self.ready(UP_WITHIN).await
    }

    /// Waits until all processes are ready.
    pub async fn ready(&self, limit: Duration) -> Result<(), SystemError> {
        let deadline = Instant::now() + limit;
        for process in &self.processes {
            while !process.is_ready(&self.client).await {
                if Instant::now() > deadline {
                    return Err(SystemError::NotReady(process.target, limit));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        Ok(())
    }

    /// Watches all processes. Ends only with an error.
    pub async fn watch(&self) -> Result<(), ServerError> {
        let watches = self.processes.iter().map(|process| process.watch(&self.client));
        futures::future::try_join_all(watches).await.map(drop)
    }
}

fn arguments(
    installation: &InstallationSettings,
    links: &Links,
    party: usize,
    database: &FreshDatabase,
    postgres: u16,
) -> InstallationArguments {
    let link = |server| &links.of(party, server).proxy;
    let redis = link(Server::Redis).redis_settings();
    InstallationArguments {
        installation: installation.clone(),
        redis: RedisSettings {
            redis_mode: RedisMode::Single,
            redis_timeout: times::REDIS_TIMEOUT,
            ..redis
        },
        kafka: link(Server::Kafka).kafka_settings(),
        postgres: PostgresSettings {
            postgres_url: link(Server::Postgres).through(&database.settings.postgres_url, postgres),
            ..database.settings.clone()
        },
    }
}
