//! The HTTP client of all measurements, as a child process of its own: one thread, keep-alive connections, a new user
//! with every request. It does as little as it can, since it shares the machine with what it measures.
//!
//! Closed loop: every connection sends its next request when it has its answer. Open loop: every connection has its
//! share of a fixed rate; a request that starts late is measured from when it should have started.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    net::SocketAddr,
    process::Stdio,
    rc::Rc,
    time::{Duration, Instant},
};

use std::cell::{Cell, RefCell};

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    task::LocalSet,
};

use crate::{
    error::{BenchError, Result},
    latency::{Latencies, Samples},
    program::own_program,
};

/// How long the client waits for answers after the end.
const DRAIN: Duration = Duration::from_secs(10);

/// What the client is to do; flags of the child.
#[derive(Clone, Debug, Args)]
pub struct ClientPlan {
    /// Doors; connections are spread over them.
    #[arg(long = "target", value_delimiter = ',')]
    pub targets: Vec<SocketAddr>,
    /// The campaign to claim in.
    #[arg(long)]
    pub campaign: String,
    /// Keep-alive connections.
    #[arg(long)]
    pub connections: usize,
    /// Goes before every user's number.
    #[arg(long)]
    pub user_prefix: String,
    /// Seconds that do not count.
    #[arg(long, default_value_t = 0.0)]
    pub warmup: f64,
    /// Seconds that count.
    #[arg(long)]
    pub seconds: f64,
    /// Requests a second over all connections; without it each sends as soon as it can.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Most requests in all.
    #[arg(long)]
    pub requests: Option<u64>,
}

/// What the client saw while it counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientReport {
    /// Seconds that counted.
    pub seconds: f64,
    /// Answers by HTTP status; 0: the connection broke.
    pub answers: BTreeMap<u16, u64>,
    /// Of those with status 202.
    pub accepted: Latencies,
    /// Of the others.
    pub refused: Latencies,
    /// CPU seconds of the client over its whole life.
    pub cpu_seconds: f64,
    /// Milliseconds since 1970 of the first request.
    pub began_at_ms: i64,
}

impl ClientReport {
    /// Answers a second with this status.
    pub fn rate(&self, status: u16) -> f64 {
        self.answers.get(&status).copied().unwrap_or_default() as f64 / self.seconds
    }

    /// Answers a second.
    pub fn total_rate(&self) -> f64 {
        let total: u64 = self
            .answers
            .iter()
            .filter_map(|(status, count)| (*status != BROKEN).then_some(count))
            .sum();
        total as f64 / self.seconds
    }

    /// Fails unless every answer has this status.
    pub fn only(self, status: u16) -> Result<Self> {
        if self.answers.keys().all(|&other| other == status) && !self.answers.is_empty() {
            return Ok(self);
        }
        Err(BenchError::Invalid(format!(
            "only answers of status {status} were to come, not {:?}",
            self.answers
        )))
    }
}

/// A client that runs.
pub struct RunningClient {
    child: Child,
}

impl ClientPlan {
    fn flags(&self) -> Vec<OsString> {
        let targets: Vec<String> = self.targets.iter().map(SocketAddr::to_string).collect();
        let mut flags = vec![
            ("--target", targets.join(",")),
            ("--campaign", self.campaign.clone()),
            ("--connections", self.connections.to_string()),
            ("--user-prefix", self.user_prefix.clone()),
            ("--warmup", self.warmup.to_string()),
            ("--seconds", self.seconds.to_string()),
        ];
        flags.extend(self.rate.map(|rate| ("--rate", rate.to_string())));
        flags.extend(self.requests.map(|requests| ("--requests", requests.to_string())));
        flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.into(), value.into()])
            .collect()
    }

    /// Starts the client.
    pub fn start(&self) -> Result<RunningClient> {
        let child = Command::new(own_program()?)
            .arg("client")
            .args(self.flags())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io("start the client"))?;
        Ok(RunningClient { child })
    }

    /// Runs the client to its end.
    pub async fn run(&self) -> Result<ClientReport> {
        self.start()?.report().await
    }
}

impl RunningClient {
    /// Waits for its end.
    pub async fn report(self) -> Result<ClientReport> {
        let output = self
            .child
            .wait_with_output()
            .await
            .map_err(BenchError::io("wait for the client"))?;
        if !output.status.success() {
            return Err(BenchError::Invalid(format!("the client ended with {}", output.status)));
        }
        serde_json::from_slice(&output.stdout).map_err(|source| BenchError::Report {
            what: "the client",
            source,
        })
    }
}

/// What all connections share; one thread, so cells do.
struct Shared {
    plan: ClientPlan,
    counts_from: Instant,
    counts_to: Instant,
    next_user: Cell<u64>,
    answers: RefCell<BTreeMap<u16, u64>>,
    accepted: RefCell<Samples>,
    refused: RefCell<Samples>,
    last: Cell<Instant>,
}

/// The child: claims as planned.
pub async fn run(plan: ClientPlan) -> Result<ClientReport> {
    let mut streams = Vec::with_capacity(plan.connections);
    for connection in 0..plan.connections {
        let target = plan.targets[connection % plan.targets.len()];
        let stream = TcpStream::connect(target)
            .await
            .map_err(BenchError::io(format!("connect to {target}")))?;
        stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
        streams.push(stream);
    }
    let began_at_ms = jiff::Timestamp::now().as_millisecond();
    let began = Instant::now();
    let counts_from = began + Duration::from_secs_f64(plan.warmup);
    let shared = Rc::new(Shared {
        counts_from,
        counts_to: counts_from + Duration::from_secs_f64(plan.seconds),
        next_user: Cell::new(0),
        answers: RefCell::default(),
        accepted: RefCell::default(),
        refused: RefCell::default(),
        last: Cell::new(began),
        plan,
    });
    let local = LocalSet::new();
    let connections: Vec<_> = streams
        .into_iter()
        .enumerate()
        .map(|(index, stream)| local.spawn_local(connection(shared.clone(), index, stream)))
        .collect();
    let all = local.run_until(futures::future::join_all(connections));
    // A door that answers nothing any more must not hang the run.
    let limit = Duration::from_secs_f64(shared.plan.warmup + shared.plan.seconds) + DRAIN;
    let _ = tokio::time::timeout(limit, all).await;

    let whole = shared.plan.requests.is_some();
    let seconds = if whole {
        shared.last.get().duration_since(counts_from).as_secs_f64()
    } else {
        shared.plan.seconds
    };
    Ok(ClientReport {
        seconds,
        answers: shared.answers.take(),
        accepted: shared.accepted.take().summary(),
        refused: shared.refused.take().summary(),
        cpu_seconds: crate::program::cpu_seconds(std::process::id())?,
        began_at_ms,
    })
}

/// One connection until the time is over or it breaks.
async fn connection(shared: Rc<Shared>, index: usize, mut stream: TcpStream) {
    let plan = &shared.plan;
    let mut request = request_of(&plan.campaign, &plan.user_prefix);
    let user_at = request.len() - USER_DIGITS - 2;
    let mut buffer = vec![0_u8; 4096];
    let period = plan.rate.map(|rate| plan.connections as f64 / rate);
    let began = Instant::now();
    let mut sent = 0_u64;
    loop {
        let due = period.map(|period| {
            // Connections take turns.
            let offset = period * index as f64 / plan.connections as f64;
            began + Duration::from_secs_f64(offset + period * sent as f64)
        });
        if let Some(due) = due
            && due > Instant::now()
        {
            tokio::time::sleep_until(due.into()).await;
        }
        let now = Instant::now();
        let user = shared.next_user.get();
        if now >= shared.counts_to || plan.requests.is_some_and(|most| user >= most) {
            return;
        }
        shared.next_user.set(user + 1);
        write_user(&mut request[user_at..user_at + USER_DIGITS], user);
        sent += 1;
        let status = exchange(&mut stream, &request, &mut buffer).await.unwrap_or(BROKEN);
        let done = Instant::now();
        shared.last.set(done);
        if done >= shared.counts_from && (done < shared.counts_to || plan.requests.is_some()) {
            *shared.answers.borrow_mut().entry(status).or_default() += 1;
            let samples = if status == 202 {
                &shared.accepted
            } else {
                &shared.refused
            };
            samples.borrow_mut().add(done.duration_since(due.unwrap_or(now)));
        }
        if status == BROKEN {
            return;
        }
    }
}

/// In place of a status: the connection broke.
const BROKEN: u16 = 0;

/// Digits of a user's number in the request.
const USER_DIGITS: usize = 10;

fn request_of(campaign: &str, prefix: &str) -> Vec<u8> {
    let body = format!(
        "{{\"campaign\":\"{campaign}\",\"userId\":\"{prefix}{}\"}}",
        "0".repeat(USER_DIGITS)
    );
    format!(
        "POST /coupon-issues HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn write_user(digits: &mut [u8], mut user: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (user % 10) as u8;
        user /= 10;
    }
}

/// Sends a request and reads its whole answer.
async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> std::io::Result<u16> {
    stream.write_all(request).await?;
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            buffer.resize(filled * 2, 0);
        }
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        filled += read;
        if let Some((status, length)) = answer_of(&buffer[..filled])
            && filled >= length
        {
            return Ok(status);
        }
    }
}

/// Status and whole length of an answer whose head is complete.
fn answer_of(bytes: &[u8]) -> Option<(u16, usize)> {
    const LENGTH: &[u8] = b"content-length: ";
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let status = std::str::from_utf8(bytes.get(9..12)?).ok()?.parse().ok()?;
    let at = bytes[..head]
        .windows(LENGTH.len())
        .position(|window| window.eq_ignore_ascii_case(LENGTH))?;
    let length = bytes[at + LENGTH.len()..head]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0_usize, |length, byte| length * 10 + usize::from(byte - b'0'));
    Some((status, head + 4 + length))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_the_user_in_place() {
        let mut request = request_of("sale", "u");
        let at = request.len() - USER_DIGITS - 2;
        write_user(&mut request[at..at + USER_DIGITS], 1_234);
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["userId"], "u0000001234");
    }

    #[test]
    fn an_answer_is_whole_when_its_announced_length_is_there() {
        let answer = b"HTTP/1.1 410 Gone\r\nContent-Length: 5\r\nx: y\r\n\r\nhello";
        assert_eq!(answer_of(answer), Some((410, answer.len())));
        assert_eq!(answer_of(&answer[..40]), None);
    }
}
