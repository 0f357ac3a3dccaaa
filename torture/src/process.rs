//! Intakes and workers as processes of their own, watched as Kubernetes watches them: what ends is started again, and
//! what is no longer alive is killed.

use std::{
    ffi::OsString,
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use coupon::connections::InstallationArguments;
use testkit::{
    child::{Launch, ServerError, ServerProcess, Signal},
    ports::free_port,
};
use tokio::sync::Mutex;

use crate::{clock::ClockShift, plan::Target};

/// Between two looks at a process.
const WATCH: Duration = Duration::from_millis(100);
/// Looks at a process between two looks at its liveness.
const LIVENESS_EVERY: u32 = 10;
/// Looks at a process between two starts of it.
const START_EVERY: u32 = 5;
/// How long a process may take to end in order.
const GRACE: Duration = Duration::from_secs(8);

/// Times that are short enough for many faults a minute.
pub mod times {
    use std::time::Duration;

    /// `--publish-timeout`.
    pub const PUBLISH_TIMEOUT: Duration = Duration::from_millis(1_000);
    /// `--clock-margin`.
    pub const CLOCK_MARGIN: Duration = Duration::from_millis(200);
    /// `--worker-lock-lease` and the like.
    pub const LOCK_LEASE: Duration = Duration::from_secs(2);
    /// How long Redis may take to answer.
    pub const REDIS_TIMEOUT: Duration = Duration::from_secs(1);
    /// After which Kafka gives a worker's partitions away.
    pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);
    /// Between two sweeps.
    pub const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
}

/// A process of the product.
pub struct Process {
    /// Which.
    pub target: Target,
    /// Public port of an intake; of a worker: unused.
    pub port: u16,
    /// Internal port.
    pub internal_port: u16,
    folder: PathBuf,
    command: Vec<OsString>,
    clock: Option<ClockShift>,
    state: Mutex<State>,
    ended_by_itself: AtomicU64,
    not_alive: AtomicU64,
}

struct State {
    running: Option<ServerProcess>,
    frozen: bool,
    /// Whether it is to run at all.
    wanted: bool,
    shift: i64,
}

/// A binary of this workspace, built beside this one (or beside this test).
pub fn binary(name: &str) -> Result<PathBuf, ServerError> {
    let missing = || ServerError::Missing {
        server: "the system under torture",
        program: format!("{name} beside this program (`cargo build -p intake -p worker -p torture`)"),
    };
    let this = std::env::current_exe().map_err(|_| missing())?;
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(missing)
}

fn milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

impl Process {
    /// Not started yet.
    pub fn new(
        target: Target,
        arguments: &InstallationArguments,
        folder: &Path,
        clock: Option<ClockShift>,
    ) -> Result<Self, ServerError> {
        let io = |what| {
            move |source: io::Error| ServerError::Io {
                server: "a process",
                what,
                source,
            }
        };
        let (name, number) = match target {
            Target::Intake(i) => ("intake", i),
            Target::Worker(i) => ("worker", i),
        };
        let folder = folder.join(format!("{name}-{number}"));
        fs::create_dir_all(&folder).map_err(io("make the folder"))?;
        let folder = folder.canonicalize().map_err(io("find the folder"))?;
        let port = free_port().map_err(io("find a port"))?;
        let internal_port = free_port().map_err(io("find a port"))?;
        let address = |port| format!("{}:{port}", Ipv4Addr::LOCALHOST);
        let mut flags: Vec<String> = vec![
            "--key-prefix".to_owned(),
            arguments.installation.key_prefix.clone(),
            "--publish-timeout".to_owned(),
            milliseconds(arguments.installation.publish_timeout),
            "--clock-margin".to_owned(),
            milliseconds(arguments.installation.clock_margin),
            "--dev".to_owned(),
            "--redis-url".to_owned(),
            arguments.redis.redis_urls.join(","),
            "--redis-timeout".to_owned(),
            milliseconds(arguments.redis.redis_timeout),
            "--kafka-brokers".to_owned(),
            arguments.kafka.kafka_brokers.clone(),
            "--postgres-url".to_owned(),
            arguments.postgres.postgres_url.clone(),
            "--log".to_owned(),
            "info,librdkafka=error".to_owned(),
        ];
        let own: Vec<(&str, String)> = match target {
            Target::Intake(_) => vec![
                ("--listen", address(port)),
                ("--internal-listen", address(internal_port)),
                ("--campaign-refresh", "300ms".to_owned()),
            ],
            Target::Worker(_) => vec![
                ("--worker-internal-listen", address(internal_port)),
                ("--lock-lease", milliseconds(times::LOCK_LEASE)),
                ("--lock-keep", "300ms".to_owned()),
                ("--session-timeout", milliseconds(times::SESSION_TIMEOUT)),
                ("--sweep-interval", milliseconds(times::SWEEP_INTERVAL)),
                ("--shutdown-grace", "5s".to_owned()),
            ],
        };
        flags.extend(own.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        let mut command = vec![binary(name)?.into_os_string()];
        command.extend(flags.into_iter().map(OsString::from));
        Ok(Self {
            target,
            port,
            internal_port,
            folder,
            command,
            clock,
            state: Mutex::new(State {
                running: None,
                frozen: false,
                wanted: false,
                shift: 0,
            }),
            ended_by_itself: AtomicU64::new(0),
            not_alive: AtomicU64::new(0),
        })
    }

    /// Starts it; it is not ready yet.
    pub async fn start(&self) -> Result<(), ServerError> {
        let mut state = self.state.lock().await;
        state.wanted = true;
        state.running = Some(self.launch(state.shift)?);
        Ok(())
    }

    fn launch(&self, shift: i64) -> Result<ServerProcess, ServerError> {
        let mut environment: Vec<(&'static str, OsString)> = Vec::new();
        if let (Some(clock), true) = (&self.clock, shift != 0) {
            environment.extend(clock.environment(shift));
        }
        ServerProcess::launch(Launch {
            server: "a process",
            command: self.command.clone(),
            environment,
            folder: &self.folder,
            remove_folder: false,
            user: None,
        })
    }

    /// SIGKILL; it starts again after `pause`.
    pub async fn kill(&self, pause: Duration) -> Result<(), ServerError> {
        let mut state = self.state.lock().await;
        *state = State {
            running: None,
            frozen: false,
            wanted: true,
            shift: 0,
        };
        // Nobody else may start it meanwhile: the lock is kept.
        tokio::time::sleep(pause).await;
        state.running = Some(self.launch(0)?);
        Ok(())
    }

    /// SIGTERM, then a new start with a clock that is `shift` seconds off.
    pub async fn restart(&self, shift: i64) -> Result<(), ServerError> {
        let mut state = self.state.lock().await;
        if let Some(running) = state.running.take() {
            if state.frozen {
                running.signal(Signal::Continue)?;
            }
            running.stop(Signal::Terminate, GRACE).await?;
        }
        state.frozen = false;
        state.wanted = true;
        state.shift = shift;
        state.running = Some(self.launch(shift)?);
        Ok(())
    }

    /// Starts it anew where its clock is shifted.
    pub async fn set_clock_right(&self) -> Result<(), ServerError> {
        let shifted = self.state.lock().await.shift != 0;
        if shifted { self.restart(0).await } else { Ok(()) }
    }

    /// SIGSTOP. `false`: it is not running, or frozen already.
    pub async fn freeze(&self) -> Result<bool, ServerError> {
        let mut state = self.state.lock().await;
        match &state.running {
            Some(running) if !state.frozen => {
                running.signal(Signal::Stop)?;
                state.frozen = true;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// SIGCONT, where it is frozen.
    pub async fn thaw(&self) -> Result<(), ServerError> {
        let mut state = self.state.lock().await;
        if let (Some(running), true) = (&state.running, state.frozen) {
            running.signal(Signal::Continue)?;
        }
        state.frozen = false;
        Ok(())
    }

    /// SIGKILL, for good.
    pub async fn end(&self) {
        let mut state = self.state.lock().await;
        state.wanted = false;
        state.running = None;
    }

    /// Starts it again whenever it ends, and kills it when it says that it is no longer alive. Never returns.
    pub async fn watch(&self, client: &reqwest::Client) -> Result<(), ServerError> {
        let mut look = 0_u32;
        loop {
            tokio::time::sleep(WATCH).await;
            look += 1;
            {
                let mut state = self.state.lock().await;
                if let Some(running) = &mut state.running
                    && let Some(status) = running.ended()?
                {
                    tracing::info!(process = ?self.target, %status, "a process ended by itself");
                    self.ended_by_itself.fetch_add(1, Ordering::Relaxed);
                    state.running = None;
                } else if state.wanted && state.running.is_none() && look.is_multiple_of(START_EVERY) {
                    state.frozen = false;
                    state.running = Some(self.launch(state.shift)?);
                }
            }
            if look.is_multiple_of(LIVENESS_EVERY) && self.says_it_is_not_alive(client).await {
                tracing::info!(process = ?self.target, "a process says that it is not alive");
                self.not_alive.fetch_add(1, Ordering::Relaxed);
                self.kill(Duration::ZERO).await?;
            }
        }
    }

    async fn says_it_is_not_alive(&self, client: &reqwest::Client) -> bool {
        let asked = client.get(self.internal_url("livez")).timeout(Duration::from_secs(1));
        matches!(asked.send().await, Ok(answer) if answer.status().is_server_error())
    }

    /// Whether it says that it is ready.
    pub async fn is_ready(&self, client: &reqwest::Client) -> bool {
        let asked = client.get(self.internal_url("readyz")).timeout(Duration::from_secs(3));
        matches!(asked.send().await, Ok(answer) if answer.status().is_success())
    }

    /// A path of the internal port.
    pub fn internal_url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.internal_port)
    }

    /// How often it ended by itself (it was started while a server was out, say).
    pub fn ended_by_itself(&self) -> u64 {
        self.ended_by_itself.load(Ordering::Relaxed)
    }

    /// How often it said that it is not alive.
    pub fn not_alive(&self) -> u64 {
        self.not_alive.load(Ordering::Relaxed)
    }

    /// Lines of its log that tell of a panic.
    pub fn panics(&self) -> Vec<String> {
        let log = fs::read(self.folder.join("server.log")).unwrap_or_default();
        String::from_utf8_lossy(&log)
            .lines()
            .filter(|line| line.contains("panicked at"))
            .map(str::to_owned)
            .collect()
    }
}
