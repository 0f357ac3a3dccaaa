//! A library that shifts the wall clock of one process. It is compiled with the C compiler that the Rust compiler links with
//! anyway; where there is none, clocks are not shifted.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clock/shift.c");

/// The compiled library.
#[derive(Clone, Debug)]
pub struct ClockShift(PathBuf);

impl ClockShift {
    /// Compiles it into `folder`; `None`: there is no C compiler, or it cannot.
    pub fn compile(folder: &Path) -> Option<Self> {
        let library = folder.join("shift.so");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(SOURCE)
            .arg("-ldl")
            .stdin(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => Some(Self(library)),
            other => {
                tracing::warn!(?other, "clocks cannot be shifted: the C compiler did not do it");
                None
            }
        }
    }

    /// What makes a process' clock `seconds` off.
    pub fn environment(&self, seconds: i64) -> [(&'static str, OsString); 2] {
        [
            ("LD_PRELOAD", self.0.clone().into_os_string()),
            ("CLOCK_SHIFT_SECONDS", seconds.to_string().into()),
        ]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_with_the_library_reads_another_time() {
        let folder = std::env::temp_dir().join(format!("clock-shift-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let shift = ClockShift::compile(&folder.canonicalize().unwrap()).unwrap();
        let output = Command::new("date")
            .arg("+%s")
            .envs(shift.environment(-3_600))
            .output()
            .unwrap();
        let read: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let behind = now - Duration::from_secs(read);
        assert!((3_595..3_700).contains(&behind.as_secs()), "{behind:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
