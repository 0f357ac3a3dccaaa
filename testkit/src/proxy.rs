//! A TCP proxy between clients and one server, which breaks the wire as told.
//!
//! It runs on the runtime that started it.

use std::{fmt::Display, io, net::Ipv4Addr, sync::Arc, time::Duration};

use campaign::settings::{KafkaSettings, RedisMode, RedisSettings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    kafka,
    ports::{free_port, where_free},
    redis,
};

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They go through.
    Pass,
    /// They go through so much later, unless they are to wait or to be lost by then.
    Delay(Duration),
    /// They wait, in order, until they may go through.
    Hold,
    /// They are gone. When the direction is to pass again, the connections that lost bytes are cut: what follows a
    /// hole in a stream would be taken for something else.
    Swallow,
}

/// What the proxy does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Behavior {
    accepting: bool,
    upstream: u16,
    requests: Treatment,
    replies: Treatment,
    /// Connections of an older generation are cut.
    generation: u64,
}

/// A proxy. Dropping it closes its connections.
pub struct Proxy {
    port: u16,
    behavior: Arc<watch::Sender<Behavior>>,
    gate: Arc<Gate>,
    tasks: TaskTracker,
    ended: CancellationToken,
}

/// What a connection looks at and tells.
#[derive(Clone)]
struct Wire {
    behavior: watch::Receiver<Behavior>,
    gate: Arc<Gate>,
}

/// Where bytes are held, and may pass one piece at a time.
struct Gate {
    /// How many directions hold bytes.
    held: watch::Sender<usize>,
    /// One for each piece that may pass.
    may_pass: Semaphore,
    /// One for each piece that does.
    passed: Semaphore,
    /// Whether new connections are accepted.
    listening: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            held: watch::Sender::new(0),
            may_pass: Semaphore::new(0),
            passed: Semaphore::new(0),
            listening: watch::Sender::new(true),
        }
    }
}

impl Proxy {
    /// A proxy on a free port before the server at `upstream` on 127.0.0.1.
    pub async fn to(upstream: u16) -> io::Result<Self> {
        let was_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        where_free(was_taken, async || Self::between(free_port()?, upstream).await).await
    }

    /// A proxy at `port` before the server at `upstream` on 127.0.0.1.
    pub async fn between(port: u16, upstream: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let (behavior, seen) = watch::channel(Behavior {
            accepting: true,
            upstream,
            requests: Treatment::Pass,
            replies: Treatment::Pass,
            generation: 0,
        });
        let proxy = Self {
            port,
            behavior: Arc::new(behavior),
            gate: Arc::default(),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
        };
        let wire = Wire {
            behavior: seen,
            gate: proxy.gate.clone(),
        };
        let accept = accept(listener, port, wire, proxy.tasks.clone(), proxy.ended.clone());
        tokio::spawn(proxy.ended.clone().run_until_cancelled_owned(accept));
        Ok(proxy)
    }

    /// Where it listens on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Settings of a Redis client that goes through it.
    pub fn redis_settings(&self) -> RedisSettings {
        redis::settings(RedisMode::Single, vec![format!("redis://127.0.0.1:{}", self.port)])
    }

    /// Settings of a Kafka client that goes through it.
    pub fn kafka_settings(&self) -> KafkaSettings {
        kafka::settings(format!("127.0.0.1:{}", self.port))
    }

    /// `url` with this proxy's port in place of its own (a Postgres URL, say).
    pub fn through(&self, url: &str, upstream: u16) -> String {
        url.replace(&format!(":{upstream}"), &format!(":{}", self.port))
    }

    /// What happens to what clients send.
    pub fn requests(&self, treatment: Treatment) {
        self.behavior.send_modify(|behavior| behavior.requests = treatment);
    }

    /// What happens to what the server answers.
    pub fn replies(&self, treatment: Treatment) {
        self.behavior.send_modify(|behavior| behavior.replies = treatment);
    }

    /// Whether bytes came that it was told to hold.
    pub fn holds_something(&self) -> bool {
        *self.gate.held.borrow() > 0
    }

    /// Lets one piece of what it holds pass, or of what it will hold, and waits until it does. A request may be several
    /// pieces, and small requests that were sent together may be one.
    pub async fn pass_one(&self) {
        self.gate.may_pass.add_permits(1);
        if let Ok(passed) = self.gate.passed.acquire().await {
            passed.forget();
        }
    }

    /// Lets what it holds pass piece by piece until `moment` has come, and holds what is held then. It looks whether it
    /// has come only while something is held: whoever waits for that does nothing meanwhile, so no moment is missed.
    ///
    /// # Panics
    /// With `what` in the text when the moment has not come within `limit`.
    pub async fn step_until(&self, limit: Duration, what: impl Display, mut moment: impl AsyncFnMut() -> bool) {
        let mut held = self.gate.held.subscribe();
        let steps = async {
            loop {
                // The sender is ours: it does not end.
                let _ = held.wait_for(|&held| held > 0).await;
                if moment().await {
                    break;
                }
                self.pass_one().await;
            }
        };
        let stepped = tokio::time::timeout(limit, steps).await;
        assert!(stepped.is_ok(), "not within {limit:?}: {what}");
    }

    /// The server works on, and nobody hears of it.
    pub fn drop_replies(&self) {
        self.replies(Treatment::Swallow);
    }

    /// Everything goes through again, and connections are accepted.
    pub fn restore(&self) {
        self.behavior.send_modify(|behavior| {
            behavior.accepting = true;
            behavior.requests = Treatment::Pass;
            behavior.replies = Treatment::Pass;
        });
    }

    /// Cuts all connections; new ones are accepted.
    pub fn cut(&self) {
        self.behavior.send_modify(|behavior| behavior.generation += 1);
    }

    /// Leads to another server from now on, as an address does that moved: all connections are cut.
    pub fn lead_to(&self, upstream: u16) {
        self.behavior.send_modify(|behavior| {
            behavior.upstream = upstream;
            behavior.generation += 1;
        });
    }

    /// Cuts all connections and refuses new ones, as if the server were down. A little may come through yet: see
    /// [`Self::shut`].
    pub fn refuse(&self) {
        self.behavior.send_modify(|behavior| {
            behavior.accepting = false;
            behavior.generation += 1;
        });
    }

    /// Refuses, and waits until it does: nothing that is sent from then on reaches the server.
    pub async fn shut(&self) {
        self.refuse();
        let _ = self.gate.listening.subscribe().wait_for(|listening| !listening).await;
        while !self.tasks.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// The proxy's end towards clients.
enum Door {
    Open(TcpListener),
    /// Refuses as the port of a server that is down. The port stays ours meanwhile: nobody else may listen there.
    Closed(#[expect(dead_code, reason = "it holds the port")] TcpSocket),
}

impl Door {
    fn at(port: u16, accepting: bool) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        // Connections that were cut are remembered at the port for a minute.
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
        Ok(if accepting {
            Self::Open(socket.listen(1024)?)
        } else {
            Self::Closed(socket)
        })
    }
}

async fn accept(listener: TcpListener, port: u16, wire: Wire, tasks: TaskTracker, ended: CancellationToken) {
    let mut door = Some(Door::Open(listener));
    let mut behavior = wire.behavior.clone();
    loop {
        let now = *behavior.borrow_and_update();
        if now.accepting != matches!(door, Some(Door::Open(_))) || door.is_none() {
            // Closed before it is opened anew: two sockets do not share the port.
            drop(door.take());
            door = Door::at(port, now.accepting).ok();
            wire.gate.listening.send_replace(matches!(door, Some(Door::Open(_))));
        }
        match &door {
            Some(Door::Open(open)) => tokio::select! {
                changed = behavior.changed() => if changed.is_err() { return },
                accepted = open.accept() => if let Ok((client, _)) = accepted {
                    // As of the last look: what came in while it was told to refuse is cut like what was there before.
                    let connection = connect(client, wire.clone(), now);
                    tasks.spawn(ended.clone().run_until_cancelled_owned(connection));
                },
            },
            Some(Door::Closed(_)) => {
                if behavior.changed().await.is_err() {
                    return;
                }
            }
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Serves one connection, accepted under this behavior, until either side closes it or it is cut.
async fn connect(client: TcpStream, wire: Wire, as_of: Behavior) {
    let mut behavior = wire.behavior.clone();
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, as_of.upstream)).await else {
        return;
    };
    // Small replies must not wait for one another.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = pump(from_client, to_server, wire.clone(), |behavior| behavior.requests);
    let replies = pump(from_server, to_client, wire.clone(), |behavior| behavior.replies);
    let cut = behavior.wait_for(|behavior| behavior.generation != as_of.generation);
    tokio::select! {
        _ = requests => {}
        _ = replies => {}
        _ = cut => {}
    }
}

/// Counts a direction that holds bytes, until they go or their connection is cut.
struct Holding<'a>(&'a watch::Sender<usize>);

impl<'a> Holding<'a> {
    fn begin(held: &'a watch::Sender<usize>) -> Self {
        held.send_modify(|held| *held += 1);
        Self(held)
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|held| *held -= 1);
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    wire: Wire,
    direction: fn(&Behavior) -> Treatment,
) -> io::Result<()> {
    let Wire { mut behavior, gate } = wire;
    let mut buffer = vec![0; 64 * 1024];
    let mut lost = false;
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            // Looks again whether the stream may go on.
            changed = behavior.changed() => match changed {
                Ok(()) if lost && direction(&behavior.borrow_and_update()) != Treatment::Swallow => return Ok(()),
                Ok(()) => continue,
                Err(_) => return Ok(()),
            },
        };
        if read == 0 {
            return Ok(());
        }
        loop {
            let treatment = direction(&behavior.borrow_and_update());
            match treatment {
                Treatment::Swallow => lost = true,
                _ if lost => return Ok(()),
                Treatment::Pass => to.write_all(&buffer[..read]).await?,
                Treatment::Delay(pause) => {
                    tokio::time::sleep(pause).await;
                    if matches!(direction(&behavior.borrow()), Treatment::Hold | Treatment::Swallow) {
                        continue;
                    }
                    to.write_all(&buffer[..read]).await?;
                }
                Treatment::Hold => {
                    let holding = Holding::begin(&gate.held);
                    tokio::select! {
                        changed = behavior.changed() => match changed {
                            Ok(()) => continue,
                            Err(_) => return Ok(()),
                        },
                        Ok(permit) = gate.may_pass.acquire() => permit.forget(),
                    }
                    // Who waits for it sees the next piece held, not this one.
                    drop(holding);
                    gate.passed.add_permits(1);
                    to.write_all(&buffer[..read]).await?;
                }
            }
            break;
        }
    }
}
