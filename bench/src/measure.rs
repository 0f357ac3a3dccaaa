//! The measurements, one a file. Where two things are compared they take turns within one run, so that what else the
//! machine does meets both.

pub mod accept;
pub mod alternatives;
pub mod chain;
pub mod growth;
pub mod memory;
pub mod overload;
pub mod p99;
pub mod persist;
pub mod rebuild;
pub mod relay;
pub mod reserve;
pub mod scaling;
pub mod soldout;

mod door;

use std::time::Duration;

/// How thorough a run is.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seconds that one side is measured in one turn.
    pub seconds: f64,
    /// Seconds before that, which do not count.
    pub warmup: f64,
    /// Turns of each side.
    pub turns: usize,
    /// A tenth of the sizes that take minutes to build.
    pub quick: bool,
}

impl Effort {
    /// For figures that are published.
    pub fn full() -> Self {
        Self {
            seconds: 6.0,
            warmup: 1.5,
            turns: 5,
            quick: false,
        }
    }

    /// For a look.
    pub fn quick() -> Self {
        Self {
            seconds: 2.0,
            warmup: 1.0,
            turns: 3,
            quick: true,
        }
    }

    /// `full`, or `quick` in a quick run.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// The seconds of one turn.
    pub fn turn(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}
