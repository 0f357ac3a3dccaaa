//! A single Redis server, with or without replicas.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use campaign::settings::{RedisMode, RedisSettings};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::{
    child::{Launch, ServerError, ServerProcess, Signal, find_program, same_folder},
    ports::at_port,
};

const SERVER: &str = "Redis";
const UP_WITHIN: Duration = Duration::from_secs(120);

/// How a server is set up. The default is what a campaign needs: no eviction, lazy expiry, nothing on disk.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Lines of `redis.conf`; a later one wins.
    pub directives: Vec<(String, String)>,
    /// Where its files lie; a temporary folder of its own if `None`.
    pub folder: Option<PathBuf>,
    /// The port; a free one if `None`.
    pub port: Option<u16>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            directives: Vec::new(),
            folder: None,
            port: None,
        }
        .with("bind", "127.0.0.1")
        .with("save", "\"\"")
        .with("maxmemory-policy", "noeviction")
        .with("lazyfree-lazy-expire", "yes")
    }
}

impl RedisOptions {
    /// Adds a line of `redis.conf`.
    pub fn with(mut self, directive: &str, value: &str) -> Self {
        self.directives.push((directive.to_owned(), value.to_owned()));
        self
    }

    /// Writes every change to disk: what was answered survives a restart.
    pub fn persistent(self) -> Self {
        self.with("appendonly", "yes").with("appendfsync", "always")
    }

    /// Follows the server at `port`.
    pub fn replica_of(self, port: u16) -> Self {
        self.with("replicaof", &format!("127.0.0.1 {port}"))
    }

    /// Uses (and keeps) a folder of the caller.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }
}

/// What a server held at one moment.
#[derive(Clone, Debug)]
pub struct RedisSnapshot(Vec<u8>);

/// With what a server starts again.
#[derive(Clone, Copy, Debug)]
pub enum RestartWith<'a> {
    /// Nothing: all is lost.
    Nothing,
    /// What it held when the snapshot was taken: later writes are lost.
    Snapshot(&'a RedisSnapshot),
    /// What lies in its folder (see [`RedisOptions::persistent`]).
    ItsFiles,
}

/// A running server. Dropping it kills it.
pub struct RedisServer {
    options: RedisOptions,
    port: u16,
    process: Option<ServerProcess>,
    folder: PathBuf,
    _temporary: Option<TempDir>,
}

static SHARED: OnceCell<RedisServer> = OnceCell::const_new();

impl RedisServer {
    /// The server that all tests of this process share; never stop or flush it.
    pub async fn shared() -> Result<&'static Self, ServerError> {
        SHARED.get_or_try_init(Self::start).await
    }

    /// A server of one's own.
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_with(RedisOptions::default()).await
    }

    /// A server of one's own, set up as told.
    pub async fn start_with(options: RedisOptions) -> Result<Self, ServerError> {
        let (folder, temporary) = match &options.folder {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(io_error("make the folder"))?;
                (folder.clone(), None)
            }
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("coupon-redis-")
                    .tempdir()
                    .map_err(io_error("make the folder"))?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let given = options.port;
        let mut server = Self {
            options,
            port: 0,
            process: None,
            folder,
            _temporary: temporary,
        };
        at_port(SERVER, given, async |port| {
            server.port = port;
            server.launch().await
        })
        .await?;
        Ok(server)
    }

    async fn launch(&mut self) -> Result<(), ServerError> {
        let program = find_program(SERVER, "redis-server", &[])?;
        let mut config = format!("port {}\n", self.port);
        for (directive, value) in &self.options.directives {
            config.push_str(&format!("{directive} {value}\n"));
        }
        fs::write(self.folder.join("redis.conf"), config).map_err(io_error("write the configuration"))?;
        let mut process = ServerProcess::launch(Launch {
            server: SERVER,
            command: vec![program.into_os_string(), OsString::from("redis.conf")],
            environment: Vec::new(),
            folder: &self.folder,
            remove_folder: self._temporary.is_some(),
            user: None,
        })?;
        let (url, folder) = (self.url(), &self.folder);
        process
            .wait_until_up(UP_WITHIN, async || match works_in(&url).await {
                Ok(Some(its)) if !same_folder(&its, folder) => {
                    Err(format!("the server at {url} is another one, it works in {its}"))
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            })
            .await?;
        self.process = Some(process);
        Ok(())
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Settings that point at it.
    pub fn settings(&self) -> RedisSettings {
        settings(RedisMode::Single, vec![self.url()])
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(ServerProcess::pid)
    }

    /// A plain connection, to look at keys or to spoil them.
    pub async fn connection(&self) -> Result<redis::aio::MultiplexedConnection, redis::RedisError> {
        connect(&self.url()).await
    }

    /// Kills the server (SIGKILL); the port stays reserved.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts again on the same port, killing it first where it still runs.
    pub async fn restart(&mut self, with: RestartWith<'_>) -> Result<(), ServerError> {
        self.stop();
        match with {
            RestartWith::ItsFiles => {}
            RestartWith::Nothing => self.forget()?,
            RestartWith::Snapshot(snapshot) => {
                self.forget()?;
                fs::write(self.folder.join("dump.rdb"), &snapshot.0).map_err(io_error("put the snapshot back"))?;
            }
        }
        self.launch().await
    }

    fn forget(&self) -> Result<(), ServerError> {
        for result in [
            fs::remove_file(self.folder.join("dump.rdb")),
            fs::remove_dir_all(self.folder.join("appendonlydir")),
        ] {
            match result {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove the files")(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies what it holds now.
    pub async fn snapshot(&self) -> Result<RedisSnapshot, ServerError> {
        let save = async {
            let mut connection = self.connection().await?;
            redis::cmd("SAVE").query_async::<()>(&mut connection).await
        };
        save.await.map_err(refused("save a snapshot"))?;
        fs::read(self.folder.join("dump.rdb"))
            .map(RedisSnapshot)
            .map_err(io_error("read the snapshot"))
    }

    /// Follows the server at `port` on 127.0.0.1 from now on; what it held is replaced.
    pub async fn follow(&self, port: u16) -> Result<(), ServerError> {
        self.command("follow another server", &["REPLICAOF", "127.0.0.1", &port.to_string()])
            .await
    }

    /// Follows nobody any more: it is a primary with what it holds.
    pub async fn promote(&self) -> Result<(), ServerError> {
        self.command("become the primary", &["REPLICAOF", "NO", "ONE"]).await
    }

    /// Removes every key.
    pub async fn flush(&self) -> Result<(), ServerError> {
        self.command("remove its keys", &["FLUSHALL"]).await
    }

    /// Forgets the scripts that it was sent.
    pub async fn forget_scripts(&self) -> Result<(), ServerError> {
        self.command("forget its scripts", &["SCRIPT", "FLUSH"]).await
    }

    async fn command(&self, what: &'static str, words: &[&str]) -> Result<(), ServerError> {
        let run = async {
            let mut connection = self.connection().await?;
            let mut command = redis::Cmd::new();
            command.arg(words);
            command.query_async::<()>(&mut connection).await
        };
        run.await.map_err(refused(what))
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    pub fn freeze(&self) -> Result<(), ServerError> {
        self.signal(Signal::Stop)
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) -> Result<(), ServerError> {
        self.signal(Signal::Continue)
    }

    fn signal(&self, kind: Signal) -> Result<(), ServerError> {
        match &self.process {
            Some(process) => process.signal(kind),
            None => Err(io_error("signal the process")(io::Error::other("it is stopped"))),
        }
    }
}

/// Settings of a client, with the defaults of the flags.
pub(crate) fn settings(mode: RedisMode, urls: Vec<String>) -> RedisSettings {
    RedisSettings {
        redis_mode: mode,
        redis_urls: urls,
        redis_sentinel_master: "coupon".to_owned(),
        redis_username: None,
        redis_password: None,
        redis_timeout: Duration::from_secs(2),
    }
}

/// A connection. Where nobody listens it fails at once.
pub(crate) async fn connect(url: &str) -> Result<redis::aio::MultiplexedConnection, redis::RedisError> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_response_timeout(Some(Duration::from_secs(30)));
    redis::Client::open(url)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// The folder of the server that answers; `None` where it was told not to tell. Fails while it is loading, too.
async fn works_in(url: &str) -> Result<Option<String>, redis::RedisError> {
    ping(url).await?;
    let mut connection = connect(url).await?;
    let ask = redis::cmd("CONFIG").arg("GET").arg("dir").to_owned();
    match ask.query_async::<(String, String)>(&mut connection).await {
        Ok((_, folder)) => Ok(Some(folder)),
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fails while it is loading, too.
pub(crate) async fn ping(url: &str) -> Result<(), redis::RedisError> {
    let mut connection = connect(url).await?;
    redis::cmd("PING").query_async::<()>(&mut connection).await
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::Io {
        server: SERVER,
        what,
        source,
    }
}

pub(crate) fn refused(what: &'static str) -> impl Fn(redis::RedisError) -> ServerError {
    move |error| ServerError::Refused {
        server: SERVER,
        what,
        reason: error.to_string(),
    }
}
