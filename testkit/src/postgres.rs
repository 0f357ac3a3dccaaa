//! A Postgres cluster for tests and the local stack, and fresh, migrated databases in it.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use campaign::{
    postgres::database::{Database, DatabaseError},
    settings::PostgresSettings,
};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::{
    child::{Launch, ServerError, ServerProcess, Signal, find_program, same_folder},
    ports::at_port,
};

const SERVER: &str = "Postgres";
const UP_WITHIN: Duration = Duration::from_secs(120);
const USER: &str = "coupon";
/// Every fresh database is a copy of this one: far quicker than to migrate each.
const MIGRATED: &str = "migrated";

/// How a cluster is set up.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// Lines of `postgresql.conf`; a later one wins.
    pub directives: Vec<(String, String)>,
    /// Where its files lie (kept, and used again); a temporary folder of its own if `None`.
    pub folder: Option<PathBuf>,
    /// The port; a free one if `None`.
    pub port: Option<u16>,
}

impl PostgresOptions {
    /// Adds a line of `postgresql.conf`.
    pub fn with(mut self, directive: &str, value: &str) -> Self {
        self.directives.push((directive.to_owned(), value.to_owned()));
        self
    }

    /// Uses (and keeps) a folder of the caller, and writes to disk as a real server does.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self.with("fsync", "on")
    }
}

/// A running cluster. Dropping it kills it.
pub struct PostgresServer {
    options: PostgresOptions,
    port: u16,
    process: Option<ServerProcess>,
    folder: PathBuf,
    user: Option<(u32, u32)>,
    migrated: OnceCell<()>,
    _temporary: Option<TempDir>,
}

/// A database of one test.
#[derive(Clone, Debug)]
pub struct FreshDatabase {
    /// Its name.
    pub name: String,
    /// Settings that point at it.
    pub settings: PostgresSettings,
}

static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();

impl PostgresServer {
    /// The cluster that all tests of this process share; never stop it.
    pub async fn shared() -> Result<&'static Self, ServerError> {
        SHARED.get_or_try_init(Self::start).await
    }

    /// A cluster of one's own.
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_with(PostgresOptions::default()).await
    }

    /// A cluster of one's own, set up as told.
    pub async fn start_with(options: PostgresOptions) -> Result<Self, ServerError> {
        let (folder, temporary) = match &options.folder {
            Some(folder) => {
                fs::create_dir_all(folder).map_err(io_error("make the folder"))?;
                (folder.clone(), None)
            }
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("coupon-postgres-")
                    .tempdir()
                    .map_err(io_error("make the folder"))?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        let user = server_user(&folder)?;
        if let Some((uid, gid)) = user {
            chown(&folder, Some(uid), Some(gid)).map_err(io_error("hand over the folder"))?;
        }
        let given = options.port;
        let mut server = Self {
            options,
            port: 0,
            process: None,
            folder,
            user,
            migrated: OnceCell::new(),
            _temporary: temporary,
        };
        if !server.data().join("PG_VERSION").exists() {
            server.initialize().await?;
        }
        at_port(SERVER, given, async |port| {
            server.port = port;
            server.launch().await
        })
        .await?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    async fn initialize(&self) -> Result<(), ServerError> {
        let initdb = find_program(SERVER, "initdb", &program_folders())?;
        let mut command: Vec<OsString> = vec![initdb.into_os_string(), "--pgdata".into(), self.data().into_os_string()];
        command.extend(
            [
                "--username",
                USER,
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
                "--no-instructions",
            ]
            .map(OsString::from),
        );
        self.process(command)?.succeed().await
    }

    fn process(&self, command: Vec<OsString>) -> Result<ServerProcess, ServerError> {
        ServerProcess::launch(Launch {
            server: SERVER,
            command,
            environment: vec![("LC_ALL", "C".into())],
            folder: &self.folder,
            remove_folder: false,
            user: self.user,
        })
    }

    async fn launch(&mut self) -> Result<(), ServerError> {
        let program = find_program(SERVER, "postgres", &program_folders())?;
        let port = self.port.to_string();
        let mut directives: Vec<(&str, &str)> = vec![
            ("port", &port),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "500"),
            ("shared_buffers", "64MB"),
            // A test's data need not survive the machine. (It survives the server: a kill loses nothing.)
            ("fsync", "off"),
            ("full_page_writes", "off"),
            ("max_wal_size", "4GB"),
            ("timezone", "UTC"),
        ];
        directives.extend(self.options.directives.iter().map(|(name, value)| (&**name, &**value)));
        let mut command: Vec<OsString> = vec![program.into_os_string(), "-D".into(), self.data().into_os_string()];
        for (name, value) in directives {
            command.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        let deadline = Instant::now() + UP_WITHIN;
        loop {
            match self.try_launch(command.clone()).await {
                Ok(process) => {
                    self.process = Some(process);
                    return Ok(());
                }
                // The sessions of a killed server live on for a moment, and a new one refuses to start beside them.
                Err(ServerError::Ended { log, .. }) if log.contains("is still in use") && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_launch(&self, command: Vec<OsString>) -> Result<ServerProcess, ServerError> {
        let mut process = ServerProcess::launch(Launch {
            server: SERVER,
            command,
            environment: vec![("LC_ALL", "C".into())],
            folder: &self.folder,
            remove_folder: self._temporary.is_some(),
            user: self.user,
        })?;
        let (url, data) = (self.url("postgres"), self.data());
        process
            .wait_until_up(UP_WITHIN, async || match serves(&url).await {
                Ok(its) if same_folder(&its, &data) => Ok(()),
                Ok(its) => Err(format!("the server at {url} is another one, its data are in {its}")),
                Err(error) => Err(error.to_string()),
            })
            .await?;
        Ok(process)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(ServerProcess::pid)
    }

    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Settings that point at one of its databases.
    pub fn settings(&self, database: &str) -> PostgresSettings {
        PostgresSettings {
            postgres_url: self.url(database),
            postgres_pool: 10,
        }
    }

    /// Runs a statement in a database, past the software.
    pub async fn execute(&self, database: &str, statement: &str) -> Result<(), ServerError> {
        let run = async {
            let mut connection = PgConnection::connect(&self.url(database)).await?;
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
                .execute(&mut connection)
                .await?;
            connection.close().await
        };
        run.await.map_err(|error: sqlx::Error| ServerError::Refused {
            server: SERVER,
            what: "run a statement",
            reason: error.to_string(),
        })
    }

    /// Makes a database if there is none of that name.
    pub async fn create_database(&self, name: &str) -> Result<(), ServerError> {
        let find = async {
            let mut connection = PgConnection::connect(&self.url("postgres")).await?;
            let found: Option<i32> = sqlx::query_scalar("SELECT 1 FROM pg_database WHERE datname = $1")
                .bind(name)
                .fetch_optional(&mut connection)
                .await?;
            connection.close().await?;
            Ok(found.is_some())
        };
        let found = find.await.map_err(|error: sqlx::Error| ServerError::Refused {
            server: SERVER,
            what: "list its databases",
            reason: error.to_string(),
        })?;
        if found {
            return Ok(());
        }
        self.execute("postgres", &format!("CREATE DATABASE \"{name}\"")).await
    }

    /// A database without any table.
    pub async fn empty_database(&self) -> Result<FreshDatabase, ServerError> {
        self.new_database("").await
    }

    /// A migrated database that nobody else uses.
    pub async fn fresh_database(&self) -> Result<FreshDatabase, ServerError> {
        self.migrated
            .get_or_try_init(async || self.make_template().await)
            .await?;
        self.new_database(&format!(" TEMPLATE {MIGRATED}")).await
    }

    async fn new_database(&self, template: &str) -> Result<FreshDatabase, ServerError> {
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        self.execute("postgres", &format!("CREATE DATABASE {name}{template}"))
            .await?;
        Ok(FreshDatabase {
            settings: self.settings(&name),
            name,
        })
    }

    async fn make_template(&self) -> Result<(), ServerError> {
        self.create_database(MIGRATED).await?;
        let mut settings = self.settings(MIGRATED);
        settings.postgres_pool = 1;
        let migrate = async {
            let database = Database::connect(&settings).await?;
            database.migrate().await
        };
        migrate.await.map_err(|error: DatabaseError| ServerError::Refused {
            server: SERVER,
            what: "migrate the template database",
            reason: error.to_string(),
        })?;
        // A database with connections cannot be copied; the pool closes its own in the background.
        self.execute(
            "postgres",
            &format!(
                "ALTER DATABASE {MIGRATED} ALLOW_CONNECTIONS false; \
                 SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{MIGRATED}'"
            ),
        )
        .await
    }

    /// Copies all databases as they are now, to be put back later. The server goes on meanwhile.
    pub async fn snapshot(&self) -> Result<PostgresSnapshot, ServerError> {
        let copy = tempfile::Builder::new()
            .prefix("coupon-postgres-snapshot-")
            .tempdir()
            .map_err(io_error("make a folder for the snapshot"))?;
        if let Some((uid, gid)) = self.user {
            chown(copy.path(), Some(uid), Some(gid)).map_err(io_error("hand over the folder"))?;
        }
        let program = find_program(SERVER, "pg_basebackup", &program_folders())?;
        let mut command = vec![program.into_os_string(), "--pgdata".into()];
        command.push(copy.path().join("data").into_os_string());
        command.extend(["--dbname".into(), self.url("postgres").into()]);
        command.extend(["--checkpoint=fast", "--wal-method=fetch", "--no-sync", "--no-manifest"].map(OsString::from));
        self.process(command)?.succeed().await?;
        Ok(PostgresSnapshot(copy))
    }

    /// Puts an older copy back and starts again on the same port: later commits are lost.
    pub async fn restore(&mut self, snapshot: &PostgresSnapshot) -> Result<(), ServerError> {
        self.kill();
        fs::remove_dir_all(self.data()).map_err(io_error("remove the data"))?;
        copy_tree(&snapshot.0.path().join("data"), &self.data())?;
        self.launch().await
    }

    /// Stops the server: open transactions are rolled back. The port stays reserved.
    pub async fn stop(&mut self) -> Result<(), ServerError> {
        match self.process.take() {
            Some(process) => process.stop(Signal::Interrupt, Duration::from_secs(10)).await,
            None => Ok(()),
        }
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts again on the same port with the same data.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.stop().await?;
        self.launch().await
    }
}

/// The data of a cluster at one moment.
pub struct PostgresSnapshot(TempDir);

/// Postgres refuses to run as root: then it runs as the user that Debian's package made.
fn server_user(folder: &Path) -> Result<Option<(u32, u32)>, ServerError> {
    let probe = tempfile::NamedTempFile::new_in(folder).map_err(io_error("write into the folder"))?;
    let owner = probe
        .as_file()
        .metadata()
        .map_err(io_error("look at the folder"))?
        .uid();
    if owner != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(io_error("read /etc/passwd"))?;
    users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| fields.first() == Some(&"postgres"))
        .find_map(|fields| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))
        .map(Some)
        .ok_or_else(|| ServerError::Missing {
            server: SERVER,
            program: "the user `postgres` (a server cannot run as root)".to_owned(),
        })
}

/// Debian keeps the server's programs out of `PATH`; the newest version comes first.
fn program_folders() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

/// With owners and modes, which Postgres insists on.
fn copy_tree(from: &Path, to: &Path) -> Result<(), ServerError> {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .map_err(io_error("copy the data"))?;
    if status.success() {
        Ok(())
    } else {
        Err(io_error("copy the data")(io::Error::other(format!("cp: {status}"))))
    }
}

/// The folder of the data of the server that answers.
async fn serves(url: &str) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let folder = sqlx::query_scalar("SHOW data_directory")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(folder)
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::Io {
        server: SERVER,
        what,
        source,
    }
}
