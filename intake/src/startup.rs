//! Brings the door up and down. Before it opens, everything is checked that the promise rests on: a server that is
//! set up wrong is refused here, with what to do, and not in the middle of a sale.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use campaign::{
    kafka::{client::KafkaError, producer::Producer, topics},
    naming::PrefixError,
    postgres::database::{Database, DatabaseError},
    rebuild::Rebuilder,
    redis::{
        connection::{Redis, RedisError},
        preflight,
    },
};
use tokio::{
    net::TcpListener,
    task::{JoinError, JoinHandle},
};
use tokio_util::sync::CancellationToken;

use crate::{
    campaigns::Campaigns,
    connections::{self, HEAD_LIMIT},
    door::{Door, DoorParts, topic::ClaimsTopic},
    http::{self, App},
    metrics::Metrics,
    settings::IntakeSettings,
};

/// What connections may take to end beyond the longest claim: a client that sends its request byte by byte is cut off.
const CONNECTIONS_GRACE: Duration = Duration::from_secs(5);

/// Why the door did not open.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key prefix is wrong.
    #[error("settings: {0}")]
    Prefix(#[from] PrefixError),
    /// Redis cannot be reached or is set so that the promise cannot hold.
    #[error("start: {0}")]
    Redis(#[from] RedisError),
    /// Kafka cannot be reached or is set so that the promise cannot hold.
    #[error("start: {0}")]
    Kafka(#[from] KafkaError),
    /// Postgres cannot be reached or lacks the migrations.
    #[error("start: {0}")]
    Database(#[from] DatabaseError),
    /// An address cannot be had.
    #[error("cannot listen on {address}: {source}; choose another address")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// As the system put it.
        source: io::Error,
    },
    /// The door's task died.
    #[error("the door ended unexpectedly: {0}")]
    Ended(#[from] JoinError),
}

/// A door that is open.
#[derive(Debug)]
pub struct Running {
    /// Where claims are taken.
    pub public_address: SocketAddr,
    /// Where coupons, probes and metrics are.
    pub internal_address: SocketAddr,
    task: JoinHandle<()>,
}

impl Running {
    /// Waits until it has ended: after the shutdown was asked for, every claim that had come in is answered and the
    /// producer is flushed.
    pub async fn stopped(self) -> Result<(), StartError> {
        Ok(self.task.await?)
    }
}

/// Opens the door and keeps it open until `shutdown`.
pub async fn run(settings: IntakeSettings, shutdown: CancellationToken) -> Result<(), StartError> {
    start(settings, shutdown).await?.stopped().await
}

/// Connects, checks and opens the door.
pub async fn start(settings: IntakeSettings, shutdown: CancellationToken) -> Result<Running, StartError> {
    let installation = &settings.installation;
    let naming = installation.naming()?;
    let (redis, database, ()) = tokio::try_join!(
        async {
            let redis = Redis::connect(&settings.redis).await?;
            preflight::check(&redis).await?;
            Ok::<_, StartError>(redis)
        },
        async {
            let database = Database::connect(&settings.postgres).await?;
            database.check_migrated().await?;
            Ok(database)
        },
        async { Ok(topics::check(&settings.kafka, &naming, installation.dev).await?) },
    )?;
    let producer = Producer::start_for_groups(&settings.kafka, installation.publish_timeout)?;
    let campaigns = Campaigns::load(
        database.clone(),
        installation.namespace.clone(),
        settings.door.campaign_refresh,
    )
    .await?;
    let topic = ClaimsTopic::load(database.clone(), naming.requests_topic()).await?;
    let metrics = Arc::new(Metrics::new());
    let settle_after = installation.settle_after();
    let rebuilder = Rebuilder::new(redis, database.clone(), &settings.kafka, naming.clone(), settle_after)?;
    let state = rebuilder.state.clone();
    let door = Door::new(DoorParts {
        state: state.clone(),
        producer: producer.clone(),
        topic: topic.clone(),
        rebuilder,
        campaigns: campaigns.clone(),
        metrics: metrics.clone(),
        publish_timeout: installation.publish_timeout,
        max_in_flight: settings.door.max_in_flight,
        max_in_flight_per_campaign: settings.door.max_in_flight_per_campaign,
        shutdown: shutdown.clone(),
    });
    let app = Arc::new(App {
        door,
        campaigns,
        state,
        database,
        metrics,
        shutdown: shutdown.clone(),
    });

    let (public, public_address) = listen(settings.door.listen).await?;
    let (internal, internal_address) = listen(settings.door.internal_listen).await?;
    tracing::info!(%public_address, %internal_address, "the door is open");
    let open = Open {
        app,
        topic,
        refresh: settings.door.campaign_refresh,
        producer,
        public,
        internal,
        publish_timeout: installation.publish_timeout,
        // A claim may wait for a reserve call, be in one, and wait for its delivery report.
        claim_limit: settings.redis.redis_timeout * 2 + installation.publish_timeout * 2,
    };
    Ok(Running {
        public_address,
        internal_address,
        task: tokio::spawn(open.serve(shutdown)),
    })
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// What serves and then ends.
struct Open {
    app: Arc<App>,
    topic: Arc<ClaimsTopic>,
    /// From one look at what Postgres knows to the next.
    refresh: Duration,
    producer: Producer,
    public: TcpListener,
    internal: TcpListener,
    publish_timeout: Duration,
    claim_limit: Duration,
}

impl Open {
    async fn serve(self, shutdown: CancellationToken) {
        let fresh = tokio::spawn(self.app.campaigns.clone().keep_fresh(shutdown.clone()));
        // Until the last claim is answered: what its acknowledgement proves has to be told.
        let topic = tokio::spawn(self.topic.keep_fresh(self.refresh));
        // Probes and metrics are answered until the last claim is.
        let internal_ends = CancellationToken::new();
        let internal = tokio::spawn(connections::serve(
            self.internal,
            http::internal(self.app.clone()),
            HEAD_LIMIT,
            internal_ends.clone(),
        ));
        let public = tokio::spawn(connections::serve(
            self.public,
            http::public(self.app.clone()),
            HEAD_LIMIT,
            shutdown.clone(),
        ));

        shutdown.cancelled().await;
        tracing::info!("shutting down: no new connections, claims on their way are finished");
        let limit = self.claim_limit + CONNECTIONS_GRACE;
        // Connections end when their last answer is sent; the work of clients that hung up is the door's.
        end_within(public, limit, "public connections").await;
        if tokio::time::timeout(limit, self.app.door.finish()).await.is_err() {
            tracing::warn!(?limit, "claims are still on their way; the sweeper decides them");
        }
        if let Err(error) = self.producer.flush(self.publish_timeout).await {
            tracing::warn!(%error, "records without an acknowledgement are left behind");
        }
        internal_ends.cancel();
        end_within(internal, CONNECTIONS_GRACE, "internal connections").await;
        fresh.abort();
        topic.abort();
        tracing::info!("the door is shut");
    }
}

async fn end_within(mut task: JoinHandle<()>, limit: Duration, what: &'static str) {
    if tokio::time::timeout(limit, &mut task).await.is_err() {
        tracing::warn!(what, ?limit, "did not end in time and are cut off");
        task.abort();
    }
}
