//! An intake or a worker as a process of its own, to be frozen and killed.
//!
//! The binaries are those that lie beside the running one: `cargo build --workspace --bins` puts them there.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    child::{Launch, ServerError, ServerProcess, Signal},
    installation::TestInstallation,
    ports::{find_port, where_free},
};

const UP_WITHIN: Duration = Duration::from_secs(120);

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The door.
    Intake,
    /// Persists, sweeps, relays, projects.
    Worker,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Intake => "intake",
            Self::Worker => "worker",
        }
    }

    fn listen_flag(self) -> &'static str {
        match self {
            Self::Intake => "--internal-listen",
            Self::Worker => "--worker-internal-listen",
        }
    }
}

/// How a program is started. The default is what its flags say.
#[derive(Clone, Debug, Default)]
pub struct ProgramOptions {
    /// Further flags; one that the installation gives, too, cannot be given again.
    pub flags: Vec<String>,
    /// Added to the environment.
    pub environment: Vec<(&'static str, OsString)>,
}

impl ProgramOptions {
    /// Adds a flag with its value.
    pub fn with(mut self, flag: &str, value: &str) -> Self {
        self.flags.extend([flag.to_owned(), value.to_owned()]);
        self
    }
}

/// A running program. Dropping it kills it.
pub struct ProgramProcess {
    process: ServerProcess,
    folder: TempDir,
    port: u16,
    internal_port: u16,
}

impl ProgramProcess {
    /// Starts `program` with the settings of `on` and waits until it is ready.
    pub async fn start(program: Program, on: &TestInstallation, options: ProgramOptions) -> Result<Self, ServerError> {
        let was_taken = |error: &ServerError| matches!(error, ServerError::Ended { log, .. } if log.contains("in use"));
        where_free(was_taken, async || {
            let mut running = Self::launch(program, on, options.clone())?;
            running.wait_until_ready(UP_WITHIN).await?;
            Ok(running)
        })
        .await
    }

    /// Starts it; it is not ready yet.
    pub fn launch(program: Program, on: &TestInstallation, options: ProgramOptions) -> Result<Self, ServerError> {
        let io = |what| {
            move |source| ServerError::Io {
                server: program.name(),
                what,
                source,
            }
        };
        let folder = tempfile::Builder::new()
            .prefix(&format!("coupon-{}-", program.name()))
            .tempdir()
            .map_err(io("make the folder"))?;
        let port = find_port(program.name())?;
        let internal_port = find_port(program.name())?;
        let mut command = vec![binary(program.name())?.into_os_string()];
        command.extend(installation_flags(on).into_iter().map(OsString::from));
        command.extend([
            program.listen_flag().into(),
            format!("127.0.0.1:{internal_port}").into(),
        ]);
        if program == Program::Intake {
            command.extend(["--listen".into(), format!("127.0.0.1:{port}").into()]);
        }
        command.extend(options.flags.into_iter().map(OsString::from));
        let process = ServerProcess::launch(Launch {
            server: program.name(),
            command,
            environment: options.environment,
            folder: folder.path(),
            remove_folder: true,
            user: None,
        })?;
        Ok(Self {
            process,
            folder,
            port,
            internal_port,
        })
    }

    /// Waits until it takes claims or persists them.
    pub async fn wait_until_ready(&mut self, limit: Duration) -> Result<(), ServerError> {
        let ready = format!("{}/readyz", self.internal_url());
        self.process
            .wait_until_up(limit, async || {
                let answer = reqwest::get(&ready).await.map_err(|error| error.to_string())?;
                answer.error_for_status().map_err(|error| error.to_string()).map(drop)
            })
            .await
    }

    /// Public port of an intake.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Port of probes and metrics.
    pub fn internal_port(&self) -> u16 {
        self.internal_port
    }

    /// Public address of an intake.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Address of probes and metrics.
    pub fn internal_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.internal_port)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has logged.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    /// Freezes it (SIGSTOP): its clocks go on, it does not.
    pub fn freeze(&self) -> Result<(), ServerError> {
        self.process.signal(Signal::Stop)
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) -> Result<(), ServerError> {
        self.process.signal(Signal::Continue)
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(self) {
        self.process.kill();
    }

    /// Asks it to end (SIGTERM), and kills it when it has not done so within `limit`.
    pub async fn stop(self, limit: Duration) -> Result<(), ServerError> {
        self.process.stop(Signal::Terminate, limit).await
    }
}

/// What every process of an installation is told.
pub fn installation_flags(on: &TestInstallation) -> Vec<String> {
    let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
    let installation = &on.installation;
    let mut flags = vec![
        ("--key-prefix", installation.key_prefix.clone()),
        ("--namespace", installation.namespace.clone()),
        ("--publish-timeout", milliseconds(installation.publish_timeout)),
        ("--clock-margin", milliseconds(installation.clock_margin)),
        ("--redis-url", on.redis.redis_urls.join(",")),
        ("--redis-timeout", milliseconds(on.redis.redis_timeout)),
        ("--kafka-brokers", on.kafka.kafka_brokers.clone()),
        ("--postgres-url", on.postgres.postgres_url.clone()),
        ("--postgres-pool", on.postgres.postgres_pool.to_string()),
    ];
    if !on.kafka.kafka_properties.is_empty() {
        flags.push(("--kafka-property", on.kafka.kafka_properties.join(",")));
    }
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    flags.chain(installation.dev.then(|| "--dev".to_owned())).collect()
}

/// A binary of this workspace, built beside the running one (a test lies one folder deeper).
fn binary(name: &'static str) -> Result<PathBuf, ServerError> {
    let io = |source: io::Error| ServerError::Io {
        server: name,
        what: "find the folder",
        source,
    };
    let running = std::env::current_exe().map_err(io)?;
    running
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder: &Path| folder.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| ServerError::Missing {
            server: name,
            program: format!("{name} beside {} (cargo build --workspace --bins)", running.display()),
        })
}
