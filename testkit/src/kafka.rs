//! A Kafka broker (KRaft, one node).
//!
//! A broker tells its clients where it is, so a proxy in front of it is soon passed by. Therefore it has spare listeners,
//! each of which advertises a port that a [`Proxy`] then listens on.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use campaign::settings::KafkaSettings;
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer},
};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::{
    child::{Launch, ServerError, ServerProcess, Signal, find_program},
    ports::{find_port, where_free},
    proxy::Proxy,
};

const SERVER: &str = "Kafka";
const VERSION: &str = "4.1.1";
const UP_WITHIN: Duration = Duration::from_secs(180);

/// How a broker is set up.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// Lines of `server.properties`; a later one wins.
    pub properties: Vec<(String, String)>,
    /// Where its files lie (kept, and used again); a temporary folder of its own if `None`.
    pub folder: Option<PathBuf>,
    /// The port; a free one if `None`.
    pub port: Option<u16>,
    /// How many proxies it can have.
    pub spare_listeners: usize,
    /// Options of its virtual machine; a later one wins. The default is a quick start and little memory.
    pub java: Vec<String>,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            properties: Vec::new(),
            folder: None,
            port: None,
            spare_listeners: 4,
            java: Vec::new(),
        }
    }
}

impl KafkaOptions {
    /// Adds a line of `server.properties`.
    pub fn with(mut self, property: &str, value: &str) -> Self {
        self.properties.push((property.to_owned(), value.to_owned()));
        self
    }

    /// Uses (and keeps) a folder of the caller.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }
}

/// A listener that advertises another port than its own.
#[derive(Clone, Copy, Debug)]
struct SpareListener {
    port: u16,
    advertised: u16,
}

/// A running broker. Dropping it kills it.
pub struct KafkaServer {
    port: u16,
    process: Option<ServerProcess>,
    folder: PathBuf,
    home: PathBuf,
    java: Vec<String>,
    properties: String,
    spare: Mutex<Vec<SpareListener>>,
    temporary: Option<TempDir>,
}

static SHARED: OnceCell<KafkaServer> = OnceCell::const_new();

impl KafkaServer {
    /// The broker that all tests of this process share; never stop it (put a proxy before it and cut that).
    pub async fn shared() -> Result<&'static Self, ServerError> {
        SHARED
            .get_or_try_init(|| {
                Self::start_with(KafkaOptions {
                    spare_listeners: 32,
                    ..KafkaOptions::default()
                })
            })
            .await
    }

    /// A broker of one's own: about five seconds and 400 MB.
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_with(KafkaOptions::default()).await
    }

    /// A broker of one's own, set up as told.
    pub async fn start_with(options: KafkaOptions) -> Result<Self, ServerError> {
        let home = tokio::task::spawn_blocking(kafka_home)
            .await
            .map_err(|error| io_error("find the jars")(io::Error::other(error)))??;
        let (folder, temporary) = match &options.folder {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(io_error("make the folder"))?;
                (folder.clone(), None)
            }
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("coupon-kafka-")
                    .tempdir()
                    .map_err(io_error("make the folder"))?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let mut server = Self {
            port: 0,
            process: None,
            folder,
            home,
            java: options.java.clone(),
            properties: String::new(),
            spare: Mutex::default(),
            temporary,
        };
        where_free(ServerError::has_ended, async || {
            server.choose_ports(&options)?;
            server.launch().await
        })
        .await?;
        Ok(server)
    }

    fn choose_ports(&mut self, options: &KafkaOptions) -> Result<(), ServerError> {
        self.port = match options.port {
            Some(port) => port,
            None => find_port(SERVER)?,
        };
        let spare = (0..options.spare_listeners)
            .map(|_| {
                Ok(SpareListener {
                    port: find_port(SERVER)?,
                    advertised: find_port(SERVER)?,
                })
            })
            .collect::<Result<Vec<_>, ServerError>>()?;
        self.properties = properties(options, self.port, find_port(SERVER)?, &spare);
        self.write_properties(&[])?;
        self.spare = Mutex::new(spare);
        Ok(())
    }

    fn write_properties(&self, more: &[(&str, &str)]) -> Result<(), ServerError> {
        let properties = self.properties.clone() + &lines(more.iter().copied());
        fs::write(self.folder.join("server.properties"), properties).map_err(io_error("write the configuration"))
    }

    async fn launch(&mut self) -> Result<(), ServerError> {
        let program = find_program(SERVER, "java", &[])?;
        let mut classpath = self.home.join("libs").into_os_string();
        classpath.push("/*");
        let java = |class: &str| -> Vec<OsString> {
            let mut command: Vec<OsString> = vec![program.clone().into_os_string()];
            command.extend(
                [
                    "-Xmx512m",
                    "-Xss512k",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-XX:-UsePerfData",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-Dorg.slf4j.simpleLogger.showDateTime=true",
                ]
                .map(OsString::from),
            );
            command.extend(self.java.iter().map(OsString::from));
            command.extend(["-cp".into(), classpath.clone(), class.into()]);
            command
        };
        if !self.folder.join("data/meta.properties").exists() {
            let mut format = java("kafka.tools.StorageTool");
            format.extend(
                [
                    "format",
                    "--cluster-id",
                    "Y291cG9uLWNvdXBvbi1jbw",
                    "--config",
                    "server.properties",
                ]
                .map(OsString::from),
            );
            let process = self.process(format)?;
            process.succeed().await?;
        }
        let mut broker = java("kafka.Kafka");
        broker.push("server.properties".into());
        let mut process = self.process(broker)?;
        let brokers = self.brokers();
        process
            .wait_until_up(UP_WITHIN, async || {
                let brokers = brokers.clone();
                tokio::task::spawn_blocking(move || answers(&brokers))
                    .await
                    .map_err(|error| error.to_string())?
            })
            .await?;
        self.process = Some(process);
        Ok(())
    }

    fn process(&self, command: Vec<OsString>) -> Result<ServerProcess, ServerError> {
        ServerProcess::launch(Launch {
            server: SERVER,
            command,
            environment: Vec::new(),
            folder: &self.folder,
            remove_folder: self.temporary.is_some(),
            user: None,
        })
    }

    /// `127.0.0.1:port`.
    pub fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Settings that point at it.
    pub fn settings(&self) -> KafkaSettings {
        settings(self.brokers())
    }

    /// A proxy of one's own before it; use [`Proxy::kafka_settings`].
    pub async fn proxy(&self) -> Result<Proxy, ServerError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(listener) = spare else {
            return Err(io_error("give a proxy")(io::Error::other(
                "all spare listeners are taken; raise KafkaOptions::spare_listeners",
            )));
        };
        Proxy::between(listener.advertised, listener.port)
            .await
            .map_err(io_error("start a proxy"))
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(ServerProcess::pid)
    }

    /// Stops it in order; the port stays reserved.
    pub async fn stop(&mut self) -> Result<(), ServerError> {
        match self.process.take() {
            Some(process) => process.stop(Signal::Terminate, Duration::from_secs(15)).await,
            None => Ok(()),
        }
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts again on the same port with the same data, stopping it first where it still runs.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.restart_with(&[]).await
    }

    /// The same with these lines of `server.properties` beside those that it has, until it starts again.
    pub async fn restart_with(&mut self, more: &[(&str, &str)]) -> Result<(), ServerError> {
        self.stop().await?;
        self.write_properties(more)?;
        self.launch().await
    }
}

fn properties(options: &KafkaOptions, port: u16, controller: u16, spare: &[SpareListener]) -> String {
    let mut listeners = format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}");
    let mut advertised = format!("PLAINTEXT://127.0.0.1:{port}");
    let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
    for (i, listener) in spare.iter().enumerate() {
        listeners.push_str(&format!(",SPARE{i}://127.0.0.1:{}", listener.port));
        advertised.push_str(&format!(",SPARE{i}://127.0.0.1:{}", listener.advertised));
        protocols.push_str(&format!(",SPARE{i}:PLAINTEXT"));
    }
    let voters = format!("1@127.0.0.1:{controller}");
    let ours = [
        ("process.roles", "broker,controller"),
        ("node.id", "1"),
        ("controller.quorum.voters", &voters),
        ("controller.listener.names", "CONTROLLER"),
        ("inter.broker.listener.name", "PLAINTEXT"),
        ("listeners", &listeners),
        ("advertised.listeners", &advertised),
        ("listener.security.protocol.map", &protocols),
        ("log.dirs", "data"),
        // A missing topic is refused at start; nobody may make one by asking for it.
        ("auto.create.topics.enable", "false"),
        ("offsets.topic.replication.factor", "1"),
        ("offsets.topic.num.partitions", "4"),
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("share.coordinator.state.topic.replication.factor", "1"),
        ("share.coordinator.state.topic.min.isr", "1"),
        // Groups of tests need not wait for late members.
        ("group.initial.rebalance.delay.ms", "0"),
        ("group.min.session.timeout.ms", "1000"),
        ("num.network.threads", "1"),
        ("num.io.threads", "4"),
        ("log.retention.ms", "-1"),
        // Hundreds of small topics: their indexes would be 10 MB each.
        ("log.index.size.max.bytes", "65536"),
        ("log.cleaner.dedupe.buffer.size", "8388608"),
    ];
    let theirs = options.properties.iter();
    lines(ours.into_iter()) + &lines(theirs.map(|(name, value)| (name.as_str(), value.as_str())))
}

fn lines<'a>(properties: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    properties.map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// Settings of a client, with the defaults of the flags.
pub(crate) fn settings(brokers: String) -> KafkaSettings {
    KafkaSettings {
        kafka_brokers: brokers,
        kafka_properties: Vec::new(),
    }
}

/// Whether clients are served.
fn answers(brokers: &str) -> Result<(), String> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("reconnect.backoff.ms", "20")
        .set("reconnect.backoff.max.ms", "100")
        .set("log_level", "0")
        .create()
        .map_err(|error| error.to_string())?;
    let metadata = consumer
        .fetch_metadata(None, Duration::from_secs(5))
        .map_err(|error| error.to_string())?;
    if metadata.brokers().is_empty() {
        Err("no broker is registered".to_owned())
    } else {
        Ok(())
    }
}

/// The folder with the jars; fetches them where they are missing.
fn kafka_home() -> Result<PathBuf, ServerError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install-kafka.sh");
    let folder = std::env::var_os("COUPON_KAFKA_HOME").map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))?;
        Some(cache.join(format!("coupon/kafka-{VERSION}")))
    });
    if let Some(folder) = folder
        && folder.join(format!("libs/kafka_2.13-{VERSION}.jar")).exists()
    {
        return Ok(folder);
    }
    tracing::warn!(script = %script.display(), "the Kafka jars are missing: fetching them, once");
    let output = Command::new(&script)
        .output()
        .map_err(io_error("run scripts/install-kafka.sh"))?;
    if output.status.success() {
        Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
    } else {
        Err(ServerError::Missing {
            server: SERVER,
            program: format!(
                "its jars ({})",
                String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")
            ),
        })
    }
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::Io {
        server: SERVER,
        what,
        source,
    }
}
