//! Connects, checks what the promise rests on, and starts the worker's tasks.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use campaign::{
    kafka::{
        client::KafkaError,
        consumer::{ConsumerEvent, GroupConsumer},
        offsets::TopicReader,
        producer::Producer,
        topics,
    },
    naming::{Naming, PrefixError},
    postgres::database::{Database, DatabaseError},
    redis::{
        connection::{Redis, RedisError},
        limit::ProcessingLimit,
        lock::Locks,
        preflight,
        state::StateStore,
    },
};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    net::TcpListener,
    sync::{Notify, Semaphore, mpsc::Receiver},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    assignment::Assignment,
    dispatch::{DispatchError, Dispatcher},
    health::{self, Health},
    metrics::Metrics,
    partition::WindowLimits,
    persist::Persistence,
    projection::Projection,
    relay::Relay,
    settings::WorkerSettings,
    sweeper::Sweeper,
    topic_watch::TopicWatch,
};

/// Connections that are left to sweeper, relay, projection, offsets and health.
const OTHER_CONNECTIONS: u32 = 4;
/// How long a leader may take to tell its offsets.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// Why a worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// Redis is not there, or not set as it must be.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Postgres is not there, or not migrated.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Kafka is not there, or its topics are not set as they must be.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    /// The internal port.
    #[error("the worker cannot listen on {address}: {source}; choose another --worker-internal-listen")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// Why a worker that ran has ended, other than being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its dispatcher.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// It did not finish in time after it was told to stop; what was not committed is read again.
    #[error("the worker did not finish within {0:?} after it was told to stop")]
    Grace(Duration),
    /// A task ended.
    #[error("a task of the worker ended: {0}")]
    Task(&'static str),
}

/// A worker that runs.
pub struct RunningWorker {
    internal: SocketAddr,
    metrics: Metrics,
    task: JoinHandle<Result<(), RunError>>,
}

impl RunningWorker {
    /// Where `/livez`, `/readyz` and `/metrics` are.
    pub fn internal_address(&self) -> SocketAddr {
        self.internal
    }

    /// Its counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Resolves when it has stopped.
    pub async fn wait(self) -> Result<(), RunError> {
        match self.task.await {
            Ok(result) => result,
            Err(_) => Err(RunError::Task("the worker itself")),
        }
    }
}

/// Connects, checks and starts. Returns once the worker has joined its group; it runs until `stop` is cancelled and
/// what was under way then is finished.
pub async fn start(settings: WorkerSettings, stop: CancellationToken) -> Result<RunningWorker, StartError> {
    let naming = settings.installation.naming()?;
    let listener = listen(settings.tuning.internal_listen).await?;
    let internal = listener.local_addr().map_err(|source| StartError::Listen {
        address: settings.tuning.internal_listen,
        source,
    })?;
    let database = Database::connect(&settings.postgres).await?;
    database.check_migrated().await?;
    let redis = Redis::connect(&settings.redis).await?;
    preflight::check(&redis).await?;
    topics::check(&settings.kafka, &naming, settings.installation.dev).await?;
    let worker = Worker::connect(settings, naming, database, redis, stop)?;
    let metrics = worker.metrics.clone();
    let task = tokio::spawn(worker.run(listener));
    Ok(RunningWorker {
        internal,
        metrics,
        task,
    })
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen { address, source })
}

/// The parts, connected and not yet running.
struct Worker {
    stop: CancellationToken,
    grace: Duration,
    metrics: Metrics,
    health: Health,
    producer: Producer,
    persistence: Arc<Persistence>,
    claims: Receiver<ConsumerEvent>,
    projection: Projection,
    lifecycle: Receiver<ConsumerEvent>,
    sweeper: Sweeper,
    topic_watch: TopicWatch,
    relay: Relay,
}

impl Worker {
    fn connect(
        settings: WorkerSettings,
        naming: Naming,
        database: Database,
        redis: Redis,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let metrics = Metrics::new();
        let tuning = settings.tuning.clone();
        let producer = Producer::start(&settings.kafka, settings.installation.publish_timeout)?;
        let reader = TopicReader::new(&settings.kafka, READ_TIMEOUT)?;
        let state = StateStore::new(redis.clone(), naming.clone());
        let locks = Locks::new(redis.clone());
        let events = Arc::new(Notify::new());
        let limits = WindowLimits {
            records: tuning.window_records,
            claims: tuning.window_claims,
        };
        let (consumer, claims) = GroupConsumer::join(
            &settings.kafka,
            &naming.worker_group(),
            &naming.requests_topic(),
            tuning.session_timeout,
        )?;
        let assignment = Arc::new(Assignment::new(
            naming.requests_topic(),
            consumer,
            database.clone(),
            limits,
            metrics.backlog_claims.clone(),
        ));
        let (consumer, lifecycle) = GroupConsumer::join(
            &settings.kafka,
            &naming.activity_group(),
            &naming.lifecycle_topic(),
            tuning.session_timeout,
        )?;
        let projection = Projection {
            database: database.clone(),
            assignment: Arc::new(Assignment::new(
                naming.lifecycle_topic(),
                consumer,
                database.clone(),
                limits,
                Gauge::default(),
            )),
            metrics: metrics.clone(),
        };
        let topic_watch = TopicWatch {
            database: database.clone(),
            reader: reader.clone(),
            claims: assignment.clone(),
            events: projection.assignment.clone(),
            metrics: metrics.clone(),
        };
        let sweeper = Sweeper {
            database: database.clone(),
            state: state.clone(),
            locks: locks.clone(),
            reader,
            naming: naming.clone(),
            settle_after: settings.installation.settle_after(),
            interval: tuning.sweep_interval,
            metrics: metrics.clone(),
        };
        let relay = Relay {
            database: database.clone(),
            state: state.clone(),
            locks: locks.clone(),
            producer: producer.clone(),
            naming: naming.clone(),
            events: events.clone(),
            batch: tuning.relay_batch,
            metrics: metrics.clone(),
        };
        let transactions = settings.postgres.postgres_pool.saturating_sub(OTHER_CONNECTIONS).max(1);
        let persistence = Arc::new(Persistence {
            database: database.clone(),
            state,
            locks,
            limit: ProcessingLimit::new(redis, &naming, tuning.processing_rate),
            producer: producer.clone(),
            naming,
            assignment,
            transactions: Semaphore::new(transactions as usize),
            events,
            metrics: metrics.clone(),
            tuning: tuning.clone(),
        });
        Ok(Self {
            health: Health {
                database,
                producer: producer.clone(),
                metrics: metrics.clone(),
                stop: stop.clone(),
            },
            stop,
            grace: tuning.shutdown_grace,
            metrics,
            producer,
            persistence,
            claims,
            projection,
            lifecycle,
            sweeper,
            topic_watch,
            relay,
        })
    }

    async fn run(self, listener: TcpListener) -> Result<(), RunError> {
        let Self { stop, grace, .. } = &self;
        let (stop, grace) = (stop.clone(), *grace);
        // Everything that was spawned ends with this, also when this future is dropped.
        let _ends_with_this = stop.clone().drop_guard();
        let running = self.run_parts(listener);
        tokio::pin!(running);
        tokio::select! {
            result = &mut running => result,
            () = async { stop.cancelled().await; tokio::time::sleep(grace).await } => Err(RunError::Grace(grace)),
        }
    }

    async fn run_parts(self, listener: TcpListener) -> Result<(), RunError> {
        let stop = self.stop;
        // The port is served until everything else has ended.
        let serving = CancellationToken::new();
        let beside = TaskTracker::new();
        beside.spawn({
            let serving = serving.clone();
            let server = axum::serve(listener, health::routes(self.health))
                .with_graceful_shutdown(async move { serving.cancelled().await });
            async move {
                if let Err(error) = server.await {
                    tracing::warn!(%error, "the internal port ended");
                }
            }
        });
        let _serves_with_this = serving.clone().drop_guard();

        // Offsets are written until the last transaction is done.
        let offsets = CancellationToken::new();
        let assignment = self.persistence.assignment.clone();
        let projected = self.projection.assignment.clone();
        let [of_claims, of_events] = [assignment.clone(), projected.clone()].map(|assignment| {
            let offsets = offsets.clone();
            tokio::spawn(async move { assignment.write_offsets(&offsets).await })
        });
        let _writes_with_this = offsets.clone().drop_guard();

        let sweeper = tokio::spawn(self.sweeper.run(stop.clone()));
        let relay = tokio::spawn(self.relay.run(stop.clone()));
        let topic_watch = tokio::spawn(self.topic_watch.run(stop.clone()));
        let projection = tokio::spawn(self.projection.run(self.lifecycle, stop.clone()));
        let dispatcher = tokio::spawn(Dispatcher::run(self.persistence.clone(), self.claims, stop.clone()));
        let working = async {
            let (swept, relayed, watched, projecting, dispatched) = tokio::join!(
                part_ends("sweeper", sweeper, &stop, |()| Ok(())),
                part_ends("relay", relay, &stop, |()| Ok(())),
                part_ends("topic watch", topic_watch, &stop, |()| Ok(())),
                part_ends("projection", projection, &stop, |_| Ok(())),
                part_ends("dispatcher", dispatcher, &stop, |result| result.map_err(RunError::from)),
            );
            offsets.cancel();
            dispatched.and(swept).and(relayed).and(watched).and(projecting)
        };
        let (worked, claims_written, events_written) = tokio::join!(
            working,
            part_ends("offsets of the claims", of_claims, &stop, |()| Ok(())),
            part_ends("offsets of the events", of_events, &stop, |()| Ok(())),
        );

        drop(self.persistence);
        for assignment in [assignment, projected] {
            if let Some(assignment) = Arc::into_inner(assignment) {
                assignment.leave().await;
            }
        }
        if let Err(error) = self.producer.flush(FLUSH_LIMIT).await {
            tracing::warn!(%error, "not everything was acknowledged at the end");
        }
        serving.cancel();
        beside.close();
        beside.wait().await;
        worked.and(claims_written).and(events_written)
    }
}

/// Waits for the end of a part, and judges what it answered. A part that ends by itself takes the worker down: it has to
/// be started again as a whole.
async fn part_ends<T>(
    name: &'static str,
    part: JoinHandle<T>,
    stop: &CancellationToken,
    judge: impl FnOnce(T) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let ended = part.await;
    let by_itself = !stop.is_cancelled();
    if by_itself {
        tracing::error!(part = name, "a part of the worker ended by itself");
        stop.cancel();
    }
    judge(ended.map_err(|_| RunError::Task(name))?)?;
    if by_itself { Err(RunError::Task(name)) } else { Ok(()) }
}
