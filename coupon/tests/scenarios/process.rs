//! An intake as a process of its own, to be frozen and killed.

use testkit::{
    installation::TestInstallation,
    program::{Program, ProgramOptions, ProgramProcess},
};

use crate::chain::{Chain, Door};

pub struct IntakeProcess {
    pub door: Door,
    pub process: ProgramProcess,
}

impl IntakeProcess {
    /// Starts the binary, which reaches the servers as `on` says, and waits until it is ready.
    pub async fn start(chain: &Chain, on: &TestInstallation) -> Self {
        let process = ProgramProcess::start(Program::Intake, on, ProgramOptions::default())
            .await
            .unwrap();
        Self {
            door: chain.door_at(process.port(), process.internal_port()),
            process,
        }
    }
}
