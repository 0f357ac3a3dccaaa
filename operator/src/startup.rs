//! Starts the operator: the port, the election, and, while it leads, the controllers and the scaler.

use std::{net::SocketAddr, sync::Arc};

use futures::future::join_all;
use kube::Client;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    board::Board,
    controller,
    events::Events,
    health::{self, Health, Heartbeat},
    lease::{Election, Timing},
    metrics::Metrics,
    reconcile::Context,
    scale::Scaler,
    servers::Connected,
    settings::OperatorSettings,
};

/// Why an operator does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Where the API server is.
    #[error("no way to a Kubernetes API server: {0}; run it in a pod with a service account, or set KUBECONFIG")]
    Kube(#[source] Box<kube::Error>),
    /// The port.
    #[error("the operator cannot listen on {address}: {source}; choose another --operator-listen")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// An operator that runs.
pub struct RunningOperator {
    address: SocketAddr,
    metrics: Metrics,
    task: JoinHandle<()>,
}

impl RunningOperator {
    /// Where `/livez`, `/readyz` and `/metrics` are.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Resolves when it has stopped.
    pub async fn wait(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the operator ended");
        }
    }
}

/// Starts with the cluster that the process finds itself in.
pub async fn start(settings: OperatorSettings, stop: CancellationToken) -> Result<RunningOperator, StartError> {
    let client = Client::try_default()
        .await
        .map_err(|error| StartError::Kube(Box::new(error)))?;
    let servers = Connected::in_background(settings.clone());
    start_on(client, servers, settings, stop).await
}

/// Starts with this API server and these servers.
pub async fn start_on(
    client: Client,
    servers: Connected,
    settings: OperatorSettings,
    stop: CancellationToken,
) -> Result<RunningOperator, StartError> {
    let listen = settings.cluster.listen;
    let failed = |source| StartError::Listen {
        address: listen,
        source,
    };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let metrics = Metrics::new();
    let heartbeat = Heartbeat::default();
    let health = Health {
        heartbeat: heartbeat.clone(),
        servers: servers.clone(),
        metrics: metrics.clone(),
    };
    let serving = tokio::spawn({
        let stop = stop.clone();
        let server =
            axum::serve(listener, health::routes(health)).with_graceful_shutdown(async move { stop.cancelled().await });
        async move {
            if let Err(error) = server.await {
                tracing::warn!(%error, "the port ended");
            }
        }
    });
    let operator = Operator {
        client,
        servers,
        settings,
        metrics: metrics.clone(),
        heartbeat,
    };
    let task = tokio::spawn(async move {
        operator.run(stop).await;
        let _ = serving.await;
    });
    Ok(RunningOperator { address, metrics, task })
}

struct Operator {
    client: Client,
    servers: Connected,
    settings: OperatorSettings,
    metrics: Metrics,
    heartbeat: Heartbeat,
}

impl Operator {
    fn namespace(&self) -> &str {
        let own = self.settings.cluster.operator_namespace.as_deref();
        own.unwrap_or(&self.settings.installation.namespace)
    }

    /// Stands for election and leads while elected, until it is told to stop.
    async fn run(&self, stop: CancellationToken) {
        let cluster = &self.settings.cluster;
        // A restarted pod keeps its name: what it held before the restart is not its own any more.
        let me = format!("{}_{:08x}", cluster.pod, rand::random::<u32>());
        let election = Election::new(
            self.client.clone(),
            self.namespace(),
            &cluster.lease,
            &me,
            Timing::default(),
        );
        let beat = || self.heartbeat.beat();
        loop {
            let won = tokio::select! {
                won = election.win(beat) => won,
                () = stop.cancelled() => return,
            };
            let namespaces = match cluster.namespaces() {
                named if named.is_empty() => "all".to_owned(),
                named => named.join(","),
            };
            tracing::info!(lease = cluster.lease, me, namespaces, "leads");
            self.metrics.leads(true);
            // Dropping the others ends them where they are: every step may be cut short and done again.
            let stopped = tokio::select! {
                () = self.lead() => false,
                () = election.keep(won, beat) => false,
                () = stop.cancelled() => true,
            };
            self.metrics.leads(false);
            if stopped {
                election.resign().await;
                tracing::info!(lease = cluster.lease, me, "resigned");
                return;
            }
        }
    }

    /// Reconciles and scales until it is dropped.
    async fn lead(&self) {
        let cluster = &self.settings.cluster;
        let board = Board::default();
        let context = Arc::new(Context::new(
            self.client.clone(),
            self.servers.clone(),
            Events::new(self.client.clone(), &cluster.pod),
            self.metrics.clone(),
            board.clone(),
        ));
        let namespaces = cluster.namespaces();
        let watched = if namespaces.is_empty() {
            vec![controller::watch(self.client.clone(), None)]
        } else {
            namespaces
                .iter()
                .map(|namespace| controller::watch(self.client.clone(), Some(namespace)))
                .collect()
        };
        let stores = watched.iter().map(|watched| watched.store.clone()).collect();
        let scaler = Scaler::new(
            self.client.clone(),
            self.namespace(),
            cluster,
            board,
            self.metrics.clone(),
        );
        let controllers = watched
            .into_iter()
            .map(|watched| controller::run(watched, context.clone()));
        tokio::join!(join_all(controllers), scaler.run(stores));
        tracing::error!("all watches ended");
    }
}
