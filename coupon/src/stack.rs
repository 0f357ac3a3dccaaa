//! The whole system on this machine: real servers as child processes (or given ones), the door and the worker in this
//! process, and rounds over the campaigns in the operator's place.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use campaign::{
    align::{AlignError, Aligner, Applied, is_over},
    kafka::{client::KafkaError, topics},
    manifest::CouponCampaign,
    name::{CampaignName, NameError},
    naming::PrefixError,
    postgres::database::{Database, DatabaseError},
    redis::state::StateAnswer,
    settings::{InstallationSettings, KafkaSettings, PostgresSettings, RedisSettings},
};
use intake::IntakeSettings;
use jiff::Timestamp;
use testkit::{
    child::ServerError,
    kafka::{KafkaOptions, KafkaServer},
    postgres::{PostgresOptions, PostgresServer},
    redis::{RedisOptions, RedisServer},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use worker::settings::WorkerSettings;

use crate::{
    connections::{ConnectError, InstallationArguments},
    given::{Given, without_flags},
};

/// The database that a launched Postgres gets.
const DATABASE: &str = "coupon";
/// A free port of this machine only.
const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// How long the rebuild of a local campaign may take beyond its wait.
const REBUILD_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// Pause between two rounds over the campaigns.
const ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// What to run.
#[derive(Clone, Debug)]
pub struct StackSettings {
    /// Names and timeouts.
    pub installation: InstallationSettings,
    /// Launched unless an address is given.
    pub redis: Given<RedisSettings>,
    /// Launched unless an address is given.
    pub kafka: Given<KafkaSettings>,
    /// Launched unless an address is given.
    pub postgres: Given<PostgresSettings>,
    /// Where launched servers keep their files; temporary folders if `None`.
    pub data: Option<PathBuf>,
    /// Public address of the door; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Internal address of the door.
    pub internal_listen: SocketAddr,
}

impl StackSettings {
    /// Everything launched, in temporary folders, on free ports.
    pub fn launched() -> Result<Self, StackError> {
        fn nowhere<T: clap::Args>() -> Result<Given<T>, StackError> {
            Ok(Given {
                settings: without_flags()?,
                address: false,
            })
        }
        Ok(Self {
            installation: InstallationSettings {
                dev: true,
                ..without_flags()?
            },
            redis: nowhere()?,
            kafka: nowhere()?,
            postgres: nowhere()?,
            data: None,
            listen: FREE,
            internal_listen: FREE,
        })
    }
}

/// Why the stack does not run.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A launched server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A setting from the environment.
    #[error("a setting is wrong: {0}")]
    Setting(#[from] clap::Error),
    /// The key prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The topics.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// The migrations.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Connecting.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The name in the manifest.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Applying the manifest.
    #[error(transparent)]
    Align(#[from] AlignError),
    /// The door did not open.
    #[error("intake: {0}")]
    Intake(#[from] intake::StartError),
    /// The worker did not start.
    #[error("worker: {0}")]
    Worker(#[from] worker::startup::StartError),
    /// The state was not built.
    #[error("the state of {0} is not there after {1:?}; the log says why")]
    NotReady(CampaignName, Duration),
    /// A part ended while it should run, or ended badly.
    #[error("{part} ended: {reason}")]
    Ended {
        /// Which.
        part: &'static str,
        /// Why.
        reason: String,
    },
}

/// What is launched; the rest was given.
struct Servers {
    redis: Option<RedisServer>,
    kafka: Option<KafkaServer>,
    postgres: Option<PostgresServer>,
}

/// A running system. Stop it with [`Stack::stop`]; dropping it kills the servers.
pub struct Stack {
    /// Where everything is.
    pub arguments: InstallationArguments,
    /// Where the door takes claims.
    pub public_address: SocketAddr,
    /// Where the door has coupons, probes and metrics.
    pub internal_address: SocketAddr,
    /// Where the worker has probes and metrics.
    pub worker_address: SocketAddr,
    aligner: Aligner,
    intake: Part,
    worker: Part,
    rounds: Part,
    servers: Servers,
    failed: CancellationToken,
}

/// A task of this process that runs until it is told to stop.
struct Part {
    name: &'static str,
    stop: CancellationToken,
    task: JoinHandle<Result<(), String>>,
}

impl Part {
    /// Runs `work`; its end without being told to cancels `failed`.
    fn run<E: fmt::Display>(
        name: &'static str,
        stop: CancellationToken,
        failed: &CancellationToken,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Self {
        let (stopped, failed) = (stop.clone(), failed.clone());
        let task = tokio::spawn(async move {
            let result = work.await.map_err(|error| error.to_string());
            if !stopped.is_cancelled() {
                tracing::error!(
                    part = name,
                    error = result.as_ref().err(),
                    "a part of the stack ended by itself"
                );
                failed.cancel();
            }
            result
        });
        Self { name, stop, task }
    }

    async fn stop(self) -> Result<(), StackError> {
        let early = self.task.is_finished();
        self.stop.cancel();
        let ended = |reason| StackError::Ended {
            part: self.name,
            reason,
        };
        match self.task.await {
            Ok(Ok(())) if early => Err(ended("by itself".to_owned())),
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(ended(reason)),
            Err(error) => Err(ended(error.to_string())),
        }
    }
}

impl Stack {
    /// Launches what is not given, creates topics, migrates, and opens the door. `say` hears what goes on.
    pub async fn start(settings: StackSettings, say: impl Fn(&str)) -> Result<Self, StackError> {
        let naming = settings.installation.naming()?;
        let (servers, arguments) = launch(&settings, &say).await?;

        say("creating topics, migrating the database");
        topics::create(&arguments.kafka, &naming, 1).await?;
        Database::connect(&arguments.postgres).await?.migrate().await?;
        let aligner = arguments.connect().await?.aligner;

        say("starting worker and intake");
        let failed = CancellationToken::new();
        let stop_worker = CancellationToken::new();
        let worker = worker::startup::start(worker_settings(&arguments)?, stop_worker.clone()).await?;
        let worker_address = worker.internal_address();
        let worker = Part::run("worker", stop_worker, &failed, worker.wait());

        let stop_intake = CancellationToken::new();
        let intake = intake::start(intake_settings(&arguments, &settings)?, stop_intake.clone()).await?;
        let (public_address, internal_address) = (intake.public_address, intake.internal_address);
        let intake = Part::run("intake", stop_intake, &failed, intake.stopped());

        let stop_rounds = CancellationToken::new();
        let rounds = rounds(aligner.clone(), stop_rounds.clone());
        let rounds = Part::run("rounds over the campaigns", stop_rounds, &failed, rounds);
        Ok(Self {
            arguments,
            public_address,
            internal_address,
            worker_address,
            aligner,
            intake,
            worker,
            rounds,
            servers,
            failed,
        })
    }

    /// Creates a campaign or changes its terms, and waits until its state is there: claims are judged from now on.
    pub async fn apply(&self, manifest: &CouponCampaign) -> Result<Applied, StackError> {
        let name = manifest.name(&self.arguments.installation.namespace)?;
        let applied = self.aligner.apply(&name, &manifest.spec.terms()).await?;
        // A round may have been at the rebuild already; then `apply` did not wait for it.
        let limit = self.arguments.installation.settle_after() + REBUILD_LIMIT;
        let deadline = Instant::now() + limit;
        loop {
            let state = self.aligner.state.state(&name).await.map_err(ConnectError::from)?;
            if matches!(state, StateAnswer::Present(_)) || is_over(&applied.campaign, Timestamp::now()) {
                return Ok(applied);
            }
            if Instant::now() > deadline {
                return Err(StackError::NotReady(name, limit));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Resolves when a part has ended without being told to; [`Stack::stop`] then says why.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Stops everything in the order of the flow, so that what came in is finished: the door, the worker, the servers.
    /// All of it is tried; the first error is told.
    pub async fn stop(self) -> Result<(), StackError> {
        let mut results = Vec::new();
        for part in [self.intake, self.rounds, self.worker] {
            results.push(part.stop().await);
        }
        let Servers { redis, kafka, postgres } = self.servers;
        if let Some(mut kafka) = kafka {
            results.push(kafka.stop().await.map_err(StackError::from));
        }
        if let Some(mut postgres) = postgres {
            results.push(postgres.stop().await.map_err(StackError::from));
        }
        drop(redis);
        results.into_iter().collect()
    }
}

/// Launches the servers that are not given, all at once.
async fn launch(settings: &StackSettings, say: &impl Fn(&str)) -> Result<(Servers, InstallationArguments), StackError> {
    let missing: Vec<&str> = [
        ("Redis", settings.redis.address),
        ("Kafka", settings.kafka.address),
        ("Postgres", settings.postgres.address),
    ]
    .iter()
    .filter_map(|&(server, given)| (!given).then_some(server))
    .collect();
    if !missing.is_empty() {
        say(&format!("launching {}", missing.join(", ")));
    }
    let folder = |server: &str| settings.data.as_ref().map(|data| data.join(server));
    let redis = async {
        if settings.redis.address {
            return Ok(None);
        }
        let options = RedisOptions {
            folder: folder("redis"),
            ..RedisOptions::default()
        };
        RedisServer::start_with(options).await.map(Some)
    };
    let kafka = async {
        if settings.kafka.address {
            return Ok(None);
        }
        let options = KafkaOptions {
            folder: folder("kafka"),
            spare_listeners: 0,
            ..KafkaOptions::default()
        };
        KafkaServer::start_with(options).await.map(Some)
    };
    let postgres = async {
        if settings.postgres.address {
            return Ok(None);
        }
        let options = match folder("postgres") {
            Some(folder) => PostgresOptions::default().in_folder(&folder),
            None => PostgresOptions::default(),
        };
        let server = PostgresServer::start_with(options).await?;
        server.create_database(DATABASE).await?;
        Ok(Some(server))
    };
    let (redis, kafka, postgres) = tokio::try_join!(redis, kafka, postgres)?;
    let arguments = InstallationArguments {
        installation: settings.installation.clone(),
        redis: match &redis {
            Some(server) => RedisSettings {
                redis_urls: vec![server.url()],
                ..settings.redis.settings.clone()
            },
            None => settings.redis.settings.clone(),
        },
        kafka: match &kafka {
            Some(server) => KafkaSettings {
                kafka_brokers: server.brokers(),
                ..settings.kafka.settings.clone()
            },
            None => settings.kafka.settings.clone(),
        },
        postgres: match &postgres {
            Some(server) => PostgresSettings {
                postgres_url: server.url(DATABASE),
                ..settings.postgres.settings.clone()
            },
            None => settings.postgres.settings.clone(),
        },
    };
    Ok((Servers { redis, kafka, postgres }, arguments))
}

fn worker_settings(arguments: &InstallationArguments) -> Result<WorkerSettings, StackError> {
    Ok(WorkerSettings {
        installation: arguments.installation.clone(),
        redis: arguments.redis.clone(),
        kafka: arguments.kafka.clone(),
        postgres: arguments.postgres.clone(),
        tuning: worker::settings::Tuning {
            internal_listen: FREE,
            ..without_flags()?
        },
    })
}

fn intake_settings(arguments: &InstallationArguments, settings: &StackSettings) -> Result<IntakeSettings, StackError> {
    Ok(IntakeSettings {
        installation: arguments.installation.clone(),
        redis: arguments.redis.clone(),
        kafka: arguments.kafka.clone(),
        postgres: arguments.postgres.clone(),
        door: intake::settings::DoorSettings {
            listen: settings.listen,
            internal_listen: settings.internal_listen,
            ..without_flags()?
        },
    })
}

/// What the operator does in a cluster: keeps Redis what Postgres says.
async fn rounds(aligner: Aligner, stop: CancellationToken) -> Result<(), DatabaseError> {
    let mut interval = tokio::time::interval(ROUND_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = interval.tick() => {}
        }
        // A server that is down comes back; the next round tries again.
        let campaigns = match aligner.database.live_campaigns().await {
            Ok(campaigns) => campaigns,
            Err(error) => {
                tracing::warn!(%error, "no round over the campaigns");
                continue;
            }
        };
        for campaign in campaigns {
            if let Err(error) = aligner.round(&campaign.name).await {
                tracing::warn!(%error, campaign = %campaign.name, "a round over a campaign failed");
            }
        }
    }
}
