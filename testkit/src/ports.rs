//! Free loopback ports that stay ours across a restart.

use std::{
    collections::HashSet,
    io,
    net::{Ipv4Addr, TcpListener},
    sync::{Mutex, PoisonError},
};

use rand::Rng;

use crate::child::ServerError;

/// Below the range from which the system gives ports to outgoing connections: a server that stops and starts again on
/// its port must not find a client's socket there.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

/// How often something is started that takes free ports.
const TRIES: u32 = 4;

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Starts something that chooses free ports for itself each time: again where one `was_taken`, since another process may take
/// it between our look and the server's.
pub(crate) async fn where_free<T, E>(
    was_taken: impl Fn(&E) -> bool,
    mut start: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 1..TRIES {
        match start().await {
            Err(error) if was_taken(&error) => {}
            result => return result,
        }
    }
    start().await
}

/// Starts a server at a port that is given, or at a free one.
pub(crate) async fn at_port<T>(
    server: &'static str,
    given: Option<u16>,
    mut start: impl AsyncFnMut(u16) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let was_taken = |error: &ServerError| given.is_none() && error.has_ended();
    where_free(was_taken, async || {
        let port = match given {
            Some(port) => port,
            None => find_port(server)?,
        };
        start(port).await
    })
    .await
}

/// A free port for a server.
pub(crate) fn find_port(server: &'static str) -> Result<u16, ServerError> {
    free_port().map_err(|source| ServerError::Io {
        server,
        what: "find a port",
        source,
    })
}

/// A port that nobody listens on, and that this process never gives twice.
pub fn free_port() -> io::Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    for _ in 0..1_000 {
        let port = rand::rng().random_range(RANGE);
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        format!("no free loopback port found in {RANGE:?}"),
    ))
}
