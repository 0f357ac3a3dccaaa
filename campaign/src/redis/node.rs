//! The connection to one server: shared by all callers, made when it is first needed and again after it broke.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::sync::Mutex;

use super::sentinel::Sentinels;

/// After a failed attempt nobody tries again for this long: an outage must not become a storm of connects.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Commands that may wait for the socket; more callers wait for room.
const PIPELINE_BUFFER: usize = 1024;

/// Where the server is.
pub(super) enum Target {
    /// At this address.
    Fixed(Box<ConnectionInfo>),
    /// Where the sentinels say the primary is.
    Primary(Box<Sentinels>),
}

/// One server.
pub(super) struct Node {
    target: Target,
    timeout: Duration,
    live: ArcSwapOption<Live>,
    connecting: Mutex<Option<Failure>>,
}

struct Live {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Failure {
    at: Instant,
    reason: String,
}

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// It was never sent: there is no connection.
    NotSent(String),
    /// The server answered with an error. `code` is its first word.
    Refused { code: String, message: String },
    /// It may have been sent, and no answer came.
    Lost(String),
}

impl Node {
    pub(super) fn new(target: Target, timeout: Duration) -> Self {
        Self {
            target,
            timeout,
            live: ArcSwapOption::empty(),
            connecting: Mutex::new(None),
        }
    }

    /// As messages call it.
    pub(super) fn address(&self) -> String {
        match &self.target {
            Target::Fixed(info) => info.addr().to_string(),
            Target::Primary(sentinels) => format!("the primary {:?}", sentinels.name),
        }
    }

    /// Sends one command, once.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, Failed> {
        let live = self.live().await?;
        let answer = live.connection.clone().req_packed_command(command).await;
        self.judge(&live, answer)
    }

    /// Sends commands in one piece, once; answers what the last one answered.
    pub(super) async fn send_together(&self, commands: &Pipeline) -> Result<Value, Failed> {
        let live = self.live().await?;
        let count = commands.len();
        let answers = live
            .connection
            .clone()
            .req_packed_commands(commands, 0, count)
            .await
            .map(|mut answers| answers.pop().unwrap_or(Value::Nil));
        self.judge(&live, answers)
    }

    fn judge(&self, live: &Arc<Live>, answer: redis::RedisResult<Value>) -> Result<Value, Failed> {
        let error = match answer {
            Ok(Value::ServerError(error)) => error.into(),
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match server_code(&error) {
            Some(code) => {
                if matches!(code.as_str(), "READONLY" | "LOADING" | "MASTERDOWN") {
                    // A primary no more, or not yet: the name or the sentinels may know another one.
                    live.broken.store(true, Ordering::Release);
                }
                Err(Failed::Refused {
                    code,
                    message: error.to_string(),
                })
            }
            None => {
                live.broken.store(true, Ordering::Release);
                Err(Failed::Lost(error.to_string()))
            }
        }
    }

    async fn live(&self) -> Result<Arc<Live>, Failed> {
        if let Some(live) = self.usable() {
            return Ok(live);
        }
        let asked = Instant::now();
        let mut last_failure = self.connecting.lock().await;
        if let Some(live) = self.usable() {
            return Ok(live);
        }
        if let Some(failure) = last_failure.as_ref().filter(|failure| failure.at + RETRY_PAUSE > asked) {
            return Err(Failed::NotSent(failure.reason.clone()));
        }
        match self.open().await {
            Ok(live) => {
                *last_failure = None;
                let live = Arc::new(live);
                self.live.store(Some(Arc::clone(&live)));
                Ok(live)
            }
            Err(reason) => {
                *last_failure = Some(Failure {
                    at: Instant::now(),
                    reason: reason.clone(),
                });
                Err(Failed::NotSent(reason))
            }
        }
    }

    fn usable(&self) -> Option<Arc<Live>> {
        self.live
            .load_full()
            .filter(|live| !live.broken.load(Ordering::Acquire))
    }

    async fn open(&self) -> Result<Live, String> {
        let info = match &self.target {
            Target::Fixed(info) => info.as_ref().clone(),
            Target::Primary(sentinels) => sentinels.primary(self.timeout).await?,
        };
        let (connection, broken) = open(info, self.timeout).await?;
        Ok(Live { connection, broken })
    }
}

/// Opens a connection; the flag turns true when it breaks.
pub(super) async fn open(
    info: ConnectionInfo,
    timeout: Duration,
) -> Result<(MultiplexedConnection, Arc<AtomicBool>), String> {
    let address = info.addr().to_string();
    // RESP3 tells of a lost connection at once; otherwise the next command would find out and count as unanswered.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let broken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&broken);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
        .set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                flag.store(true, Ordering::Release);
            }
            Ok::<(), std::convert::Infallible>(())
        });
    let client = Client::open(info.set_redis_settings(settings)).map_err(|error| format!("{address}: {error}"))?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match tokio::time::timeout(timeout, connecting).await {
        Ok(Ok(connection)) => Ok((connection, broken)),
        Ok(Err(error)) => Err(format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: no connection within {timeout:?}")),
    }
}

/// The first word of an error reply; `None` for what the client made itself.
fn server_code(error: &redis::RedisError) -> Option<String> {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => error.code().map(str::to_owned),
        _ => None,
    }
}
