//! Brings the door up and down. Before it opens, everything is checked that the promise rests on: a server that is
//! set up wrong is refused here, with what to do, and not in the middle of a sale.

use std::{future::poll_fn, io, net::SocketAddr, pin::Pin, sync::Arc, task::Poll, time::Duration};

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

/// Why the door did not open, or did not stay open.
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
    /// A part without which it is of no use ended while it should run. Claims on their way were finished.
    #[error("{part} ended unexpectedly: {reason}; start the intake again")]
    PartEnded {
        /// Which.
        part: &'static str,
        /// How.
        reason: String,
    },
}

/// A door that is open.
#[derive(Debug)]
pub struct Running {
    /// Where claims are taken.
    pub public_address: SocketAddr,
    /// Where coupons, probes and metrics are.
    pub internal_address: SocketAddr,
    task: JoinHandle<Result<(), StartError>>,
}

impl Running {
    /// Waits until it has ended: after the shutdown was asked for, or a part of it ended by itself, every claim that had
    /// come in is answered and the producer is flushed.
    pub async fn stopped(self) -> Result<(), StartError> {
        self.task.await?
    }
}

/// Opens the door and keeps it open until `shutdown`.
pub async fn run(settings: IntakeSettings, shutdown: CancellationToken) -> Result<(), StartError> {
    start(settings, shutdown).await?.stopped().await
}

/// Connects, checks and opens the door.
pub async fn start(settings: IntakeSettings, shutdown: CancellationToken) -> Result<Running, StartError> {
    // One of its own: a part that ends by itself shuts this door, and nothing else of the caller's.
    let shutdown = shutdown.child_token();
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
    async fn serve(self, shutdown: CancellationToken) -> Result<(), StartError> {
        let mut fresh = Part::spawn(
            "the look at the campaigns",
            self.app.campaigns.clone().keep_fresh(shutdown.clone()),
        );
        // Until the last claim is answered: what its acknowledgement proves has to be told.
        let mut topic = Part::spawn("the look at the topic of claims", self.topic.keep_fresh(self.refresh));
        // Probes and metrics are answered until the last claim is.
        let internal_ends = CancellationToken::new();
        let router = http::internal(self.app.clone());
        let mut internal = Part::spawn(
            "internal connections",
            connections::serve(self.internal, router, HEAD_LIMIT, internal_ends.clone()),
        );
        let router = http::public(self.app.clone());
        let mut public = Part::spawn(
            "public connections",
            connections::serve(self.public, router, HEAD_LIMIT, shutdown.clone()),
        );

        let parts = &mut [&mut fresh, &mut topic, &mut internal, &mut public];
        let outcome = until_shutdown(&shutdown, parts).await;
        if let Err(error) = &outcome {
            tracing::error!(%error, "a part of the door ended by itself");
        }
        // It is begun here where a part ended.
        shutdown.cancel();
        tracing::info!("shutting down: no new connections, claims on their way are finished");
        let limit = self.claim_limit + CONNECTIONS_GRACE;
        // Connections end when their last answer is sent; the work of clients that hung up is the door's.
        public.end_within(limit).await;
        if tokio::time::timeout(limit, self.app.door.finish()).await.is_err() {
            tracing::warn!(?limit, "claims are still on their way; the sweeper decides them");
        }
        if let Err(error) = self.producer.flush(self.publish_timeout).await {
            tracing::warn!(%error, "records without an acknowledgement are left behind");
        }
        internal_ends.cancel();
        internal.end_within(CONNECTIONS_GRACE).await;
        fresh.task.abort();
        topic.task.abort();
        tracing::info!("the door is shut");
        outcome
    }
}

/// A task that the door needs for as long as it is open.
struct Part {
    what: &'static str,
    task: JoinHandle<()>,
}

impl Part {
    fn spawn(what: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            what,
            task: tokio::spawn(work),
        }
    }

    fn ended(&self, how: Result<(), JoinError>) -> StartError {
        StartError::PartEnded {
            part: self.what,
            reason: match how {
                Ok(()) => "it came to its end".to_owned(),
                Err(error) => error.to_string(),
            },
        }
    }

    async fn end_within(&mut self, limit: Duration) {
        // One that has ended may not be waited for again.
        if !self.task.is_finished() && tokio::time::timeout(limit, &mut self.task).await.is_err() {
            tracing::warn!(what = self.what, ?limit, "did not end in time and are cut off");
            self.task.abort();
        }
    }
}

/// Waits for the shutdown. An error: one of the parts ended before it.
async fn until_shutdown(shutdown: &CancellationToken, parts: &mut [&mut Part]) -> Result<(), StartError> {
    let ended = poll_fn(|context| {
        let ended = parts
            .iter_mut()
            .find_map(|part| match Pin::new(&mut part.task).poll(context) {
                Poll::Ready(how) => Some(part.ended(how)),
                Poll::Pending => None,
            });
        ended.map_or(Poll::Pending, Poll::Ready)
    });
    tokio::select! {
        // First: it ends some of them, too.
        biased;
        () = shutdown.cancelled() => Ok(()),
        error = ended => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use std::future::pending;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn outcome(shutdown: &CancellationToken, parts: &mut [&mut Part]) -> Result<(), StartError> {
        tokio::time::timeout(SOON, until_shutdown(shutdown, parts))
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_part_that_ends_before_the_shutdown_is_an_error_and_is_not_waited_for_again() {
        let shutdown = CancellationToken::new();
        let mut goes_on = Part::spawn("goes on", pending());
        for (mut ends, reason) in [
            (Part::spawn("ends", async {}), "it came to its end"),
            (Part::spawn("ends", async { panic!("a defect") }), "a defect"),
        ] {
            let error = outcome(&shutdown, &mut [&mut goes_on, &mut ends]).await.unwrap_err();
            assert!(
                matches!(&error, StartError::PartEnded { part: "ends", reason: said } if said.contains(reason)),
                "{error}"
            );
            ends.end_within(SOON).await;
        }
        goes_on.end_within(Duration::ZERO).await;
        assert!(goes_on.task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn parts_that_end_with_the_shutdown_are_none() {
        let shutdown = CancellationToken::new();
        let mut ends = Part::spawn("ends", shutdown.clone().cancelled_owned());
        shutdown.cancel();
        while !ends.task.is_finished() {
            tokio::task::yield_now().await;
        }
        outcome(&shutdown, &mut [&mut ends]).await.unwrap();
    }
}
