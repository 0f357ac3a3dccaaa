//! Connections of a listener: HTTP/1.1, and bounds on how long a client may take, so that slow or idle ones do not pile
//! up.

use std::{io, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// From the answer before it (or the connection) to the last byte of a request's head. Longer than load balancers keep
/// idle connections (60 s): they close first, and never send a claim into a connection that is being closed.
pub const HEAD_LIMIT: Duration = Duration::from_secs(75);

/// After a failed accept: without file descriptors the next one would fail at once, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until `ends`; then waits until the answers that are under way are sent.
pub async fn serve(listener: TcpListener, router: Router, head_limit: Duration, ends: CancellationToken) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_limit);
    let open = GracefulShutdown::new();
    while let Some(accepted) = ends.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                // Answers are small and complete: there is nothing to wait for.
                let _ = stream.set_nodelay(true);
                let service = TowerToHyperService::new(router.clone());
                let connection = open.watch(http.serve_connection(TokioIo::new(stream), service));
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection broke");
                    }
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::error!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    open.shutdown().await;
}

/// The client went away before it was accepted.
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
