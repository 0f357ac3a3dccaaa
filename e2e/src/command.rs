//! Runs programs and keeps what they say.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{io::AsyncWriteExt, process::Command};

/// No single step takes longer; a program that hangs fails its test.
const LIMIT: Duration = Duration::from_secs(420);

/// A program failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be run.
    #[error("{0} could not be run: {1}")]
    NotRun(String, std::io::Error),
    /// It did not end.
    #[error("{0} did not end within {LIMIT:?}")]
    Late(String),
    /// It said no.
    #[error("{command} failed: {stderr}")]
    Failed {
        /// With its arguments.
        command: String,
        /// What it said.
        stderr: String,
    },
}

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Where programs are: also where `scripts/install-helm.sh` puts Helm.
fn path() -> OsString {
    let mut folders: Vec<PathBuf> = env::var_os("PATH")
        .map(|path| env::split_paths(&path).collect())
        .unwrap_or_default();
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")));
    let home = env::var_os("KINDBOX_HOME")
        .map(PathBuf::from)
        .or_else(|| cache.map(|cache| cache.join("kindbox")));
    folders.extend(home.map(|home| home.join("bin")));
    env::join_paths(folders).unwrap_or_default()
}

/// Runs a program in the repository, with `input` on its standard input; answers its standard output.
pub async fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, CommandError> {
    let command = format!("{program} {}", arguments.join(" "));
    let not_run = |error| CommandError::NotRun(command.clone(), error);
    let mut child = Command::new(program)
        .args(arguments)
        .env("PATH", path())
        .current_dir(repository())
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(not_run)?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).await.map_err(not_run)?;
    }
    let output = tokio::time::timeout(LIMIT, child.wait_with_output())
        .await
        .map_err(|_| CommandError::Late(command.clone()))?
        .map_err(not_run)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(CommandError::Failed {
            command,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}
