//! Command line: local stack, demo, load, audit, rebuild, dead letters.

pub mod audit;
