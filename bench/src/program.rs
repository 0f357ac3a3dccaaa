//! Programs under test as child processes, and what they cost the machine.

use std::{
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use coupon::connections::InstallationArguments;
use tempfile::TempDir;
use testkit::{
    child::{Launch, ServerProcess, Signal},
    ports::free_port,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::error::{BenchError, Result};

const UP_WITHIN: Duration = Duration::from_secs(30);
/// The unit of CPU times in `/proc`; Linux has used it on every architecture since 2.6.
const TICKS_A_SECOND: f64 = 100.0;

/// A running program. Dropping it kills it.
pub struct Program {
    process: ServerProcess,
    /// Where it takes requests.
    pub address: SocketAddr,
    /// Where its metrics are.
    pub internal: SocketAddr,
    _folder: TempDir,
}

/// The folder of the binaries of this build.
pub fn binaries() -> Result<PathBuf> {
    let own = own_program()?;
    Ok(own.parent().map(Path::to_owned).unwrap_or_default())
}

/// This program itself, for children that are part of it.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(BenchError::io("find this program"))
}

fn free_address() -> Result<SocketAddr> {
    let port = free_port().map_err(BenchError::io("find a free port"))?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// The flags with which a process of the product finds an installation.
pub fn installation_flags(arguments: &InstallationArguments) -> Vec<OsString> {
    let installation = &arguments.installation;
    let pairs = [
        ("--key-prefix", installation.key_prefix.clone()),
        ("--namespace", installation.namespace.clone()),
        (
            "--publish-timeout",
            format!("{}ms", installation.publish_timeout.as_millis()),
        ),
        ("--clock-margin", format!("{}ms", installation.clock_margin.as_millis())),
        ("--redis-url", arguments.redis.redis_urls.join(",")),
        ("--kafka-brokers", arguments.kafka.kafka_brokers.clone()),
        ("--postgres-url", arguments.postgres.postgres_url.clone()),
    ];
    let mut flags = vec![OsString::from("--dev")];
    flags.extend(pairs.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]));
    flags
}

/// Starts an intake, with further flags and environment.
pub async fn intake(
    arguments: &InstallationArguments,
    further: &[&str],
    environment: &[(&'static str, &str)],
) -> Result<Program> {
    let (address, internal) = (free_address()?, free_address()?);
    let mut command = vec![binaries()?.join("intake").into_os_string()];
    command.extend(installation_flags(arguments));
    command.extend(["--log", "warn", "--listen", &address.to_string()].map(OsString::from));
    command.extend(["--internal-listen", &internal.to_string()].map(OsString::from));
    command.extend(further.iter().map(OsString::from));
    launch("intake", command, environment, address, internal).await
}

/// Starts a worker.
pub async fn worker(arguments: &InstallationArguments) -> Result<Program> {
    let internal = free_address()?;
    let mut command = vec![binaries()?.join("worker").into_os_string()];
    command.extend(installation_flags(arguments));
    command.extend(["--log", "warn", "--worker-internal-listen", &internal.to_string()].map(OsString::from));
    launch("worker", command, &[], internal, internal).await
}

/// Starts the bare route that the door is compared with.
pub async fn bare_route() -> Result<Program> {
    let address = free_address()?;
    let mut command = vec![own_program()?.into_os_string()];
    command.extend(["bare-route", "--listen", &address.to_string()].map(OsString::from));
    launch("the bare route", command, &[], address, address).await
}

async fn launch(
    name: &'static str,
    command: Vec<OsString>,
    environment: &[(&'static str, &str)],
    address: SocketAddr,
    internal: SocketAddr,
) -> Result<Program> {
    let folder = tempfile::Builder::new()
        .prefix("coupon-bench-")
        .tempdir()
        .map_err(BenchError::io("make a folder"))?;
    let mut process = ServerProcess::launch(Launch {
        server: name,
        command,
        environment: environment.iter().map(|&(name, value)| (name, value.into())).collect(),
        folder: folder.path(),
        remove_folder: true,
        user: None,
    })?;
    process
        .wait_until_up(UP_WITHIN, async || {
            let answer = get(internal, "/livez").await.map_err(|error| error.to_string())?;
            if answer.starts_with("HTTP/1.1 200") {
                Ok(())
            } else {
                Err("not live".to_owned())
            }
        })
        .await?;
    Ok(Program {
        process,
        address,
        internal,
        _folder: folder,
    })
}

impl Program {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it in order.
    pub async fn stop(self) -> Result<()> {
        Ok(self.process.stop(Signal::Terminate, Duration::from_secs(30)).await?)
    }

    /// The sum of a counter's or gauge's series, as it tells them itself.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let text = get(self.internal, "/metrics")
            .await
            .map_err(BenchError::io("read metrics"))?;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labels) => labels.split_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.trim().parse::<f64>().ok()
        });
        Ok(values.sum())
    }
}

async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// CPU seconds that a process has used so far, in user and kernel mode.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(BenchError::io(format!("read {path}")))?;
    // The name in the second field may hold spaces.
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok());
    match (ticks(11), ticks(12)) {
        (Some(user), Some(system)) => Ok((user + system) / TICKS_A_SECOND),
        _ => Err(BenchError::Invalid(format!("{path} has no CPU times"))),
    }
}

/// Resident memory of a process in MiB: now, and at most so far.
pub fn memory_mib(pid: u32) -> Result<(f64, f64)> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(BenchError::io(format!("read {path}")))?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok()
    };
    match (kib("VmRSS:"), kib("VmHWM:")) {
        (Some(now), Some(most)) => Ok((now / 1024.0, most / 1024.0)),
        _ => Err(BenchError::Invalid(format!("{path} has no memory sizes"))),
    }
}
