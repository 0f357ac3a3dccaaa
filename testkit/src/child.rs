//! Server processes that end with their parent, even if that one is killed.
//!
//! A watcher shell holds the other end of a pipe from the parent. The pipe closes when the parent ends, however it
//! ends; then the watcher kills the server and removes its folder. No `unsafe` and no help of the kernel is needed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// The server itself replaces the first shell, so its pid is the one that the parent knows. A line from the parent
/// says that the server has been reaped: the pid may belong to somebody else by then.
const WATCHED: &str = r#"
remove=$1; shift
exec 3<&0 </dev/null
(
    trap '' INT TERM HUP
    cd /
    read -r reaped <&3 && exit
    kill -KILL $$
    [ -z "$remove" ] || for i in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf "$remove" && break
        sleep 0.1
    done
) >/dev/null 2>&1 &
exec 3<&-
exec "$@"
"#;

/// What went wrong with a server process.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The program is not there.
    #[error("cannot find {program}, which runs {server}; run `make install`")]
    Missing {
        /// The server.
        server: &'static str,
        /// The program that was looked for.
        program: String,
    },
    /// Files or processes could not be handled.
    #[error("cannot {what} of {server}: {source}")]
    Io {
        /// The server.
        server: &'static str,
        /// What was tried.
        what: &'static str,
        /// As the system put it.
        source: io::Error,
    },
    /// It ended, or never answered.
    #[error("{server} did not come up: {reason}; the end of its log:\n{log}")]
    NotUp {
        /// The server.
        server: &'static str,
        /// What was seen.
        reason: String,
        /// Its last lines.
        log: String,
    },
    /// It ended before it was up. Another process may have taken its port since it was found free.
    #[error("{server} ended with {status} before it was up; its last lines:\n{log}")]
    Ended {
        /// The server.
        server: &'static str,
        /// How.
        status: ExitStatus,
        /// Its last lines.
        log: String,
    },
    /// It is up and does not do what it was told.
    #[error("{server} refused to {what}: {reason}")]
    Refused {
        /// The server.
        server: &'static str,
        /// What was tried.
        what: &'static str,
        /// As the server or client put it.
        reason: String,
    },
}

impl ServerError {
    /// It ended before it was up: for a port that another process took, where the server does not tell.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

/// How to launch a server.
pub struct Launch<'a> {
    /// What it is, for messages.
    pub server: &'static str,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Added to the environment.
    pub environment: Vec<(&'static str, OsString)>,
    /// Where it runs; `server.log` is written there.
    pub folder: &'a Path,
    /// Whether `folder` goes when the parent ends.
    pub remove_folder: bool,
    /// User and group, where they are not the parent's.
    pub user: Option<(u32, u32)>,
}

/// A running server. Dropping it kills it.
pub struct ServerProcess {
    server: &'static str,
    child: Child,
    lifeline: Option<ChildStdin>,
    log: PathBuf,
}

/// Signals that tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Freezes.
    Stop,
    /// Goes on.
    Continue,
    /// Asks to end.
    Terminate,
    /// Asks to end (Postgres: at once, rolling back what is open).
    Interrupt,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Stop => "-STOP",
            Self::Continue => "-CONT",
            Self::Terminate => "-TERM",
            Self::Interrupt => "-INT",
        }
    }
}

/// Sends a signal to a process of ours.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    // The shell's own kill: slim images have no other.
    let status = Command::new("sh")
        .args(["-c", "kill \"$1\" \"$2\"", "sh", signal.name(), &pid.to_string()])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("kill {} {pid}: {status}", signal.name())))
    }
}

/// The program in `PATH` or in one of `folders`.
pub fn find_program(server: &'static str, program: &str, folders: &[PathBuf]) -> Result<PathBuf, ServerError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(folders.iter().cloned())
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| ServerError::Missing {
            server,
            program: program.to_owned(),
        })
}

/// Whether the folder that a server names is this one: then it is ours, and none that had its port before.
pub(crate) fn same_folder(its: &str, ours: &Path) -> bool {
    match (fs::canonicalize(its), fs::canonicalize(ours)) {
        (Ok(its), Ok(ours)) => its == ours,
        _ => Path::new(its) == ours,
    }
}

impl ServerProcess {
    /// Starts it; it is not up yet.
    pub fn launch(launch: Launch<'_>) -> Result<Self, ServerError> {
        let Launch {
            server,
            command,
            environment,
            folder,
            remove_folder,
            user,
        } = launch;
        let io = |what| move |source| ServerError::Io { server, what, source };
        let log = folder.join("server.log");
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(io("open the log"))?;
        let errors = out.try_clone().map_err(io("open the log"))?;
        let remove = if remove_folder { folder.as_os_str() } else { "".as_ref() };
        let mut shell = Command::new("sh");
        shell
            .args(["-c", WATCHED, "sh"])
            .arg(remove)
            .args(command)
            .envs(environment)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(errors)
            // Ctrl-C in a terminal goes to the whole foreground group: the parent decides when its servers stop.
            .process_group(0);
        if let Some((uid, gid)) = user {
            shell.uid(uid).gid(gid);
        }
        let mut child = shell.spawn().map_err(io("start the process"))?;
        let lifeline = child.stdin.take();
        Ok(Self {
            server,
            child,
            lifeline,
            log,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, ServerError> {
        let server = self.server;
        self.child.try_wait().map_err(|source| ServerError::Io {
            server,
            what: "watch the process",
            source,
        })
    }

    /// Polls `up` until it says yes; fails as soon as the process ends.
    pub async fn wait_until_up(
        &mut self,
        limit: Duration,
        mut up: impl AsyncFnMut() -> Result<(), String>,
    ) -> Result<(), ServerError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Err(ServerError::Ended {
                    server: self.server,
                    status,
                    log: last_lines(&self.log, 20),
                });
            }
            match up().await {
                Ok(()) => return Ok(()),
                Err(reason) if Instant::now() > deadline => {
                    return Err(self.not_up(format!("no good answer within {limit:?} ({reason})")));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn not_up(&self, reason: String) -> ServerError {
        ServerError::NotUp {
            server: self.server,
            reason,
            log: last_lines(&self.log, 20),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, kind: Signal) -> Result<(), ServerError> {
        let server = self.server;
        signal(self.pid(), kind).map_err(|source| ServerError::Io {
            server,
            what: "signal the process",
            source,
        })
    }

    /// Asks it to end, and kills it when it has not done so within `limit`.
    pub async fn stop(mut self, kind: Signal, limit: Duration) -> Result<(), ServerError> {
        if self.ended()?.is_none() {
            self.signal(kind)?;
        }
        let deadline = Instant::now() + limit;
        while self.ended()?.is_none() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Waits for a command that ends by itself.
    pub async fn succeed(mut self) -> Result<(), ServerError> {
        loop {
            match self.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.not_up(format!("it ended with {status}"))),
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(self) {}
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut lifeline) = self.lifeline.take() {
            let _ = lifeline.write_all(b"reaped\n");
        }
    }
}

fn last_lines(log: &Path, count: usize) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
