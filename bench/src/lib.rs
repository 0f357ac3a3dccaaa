//! Measures the system. Every ratio compares it with the least that anything of its kind would have to do, side by side
//! in one run on one machine: figures of another machine differ, ratios differ little.
//!
//! `suite` runs the measurements in their order, `measure` has one file for each; `stage` has the servers, `program` the
//! processes under test, `client` the load, `report` and `plot` what comes of it.

pub mod article;
pub mod bare_route;
pub mod client;
pub mod error;
pub mod latency;
pub mod measure;
pub mod plot;
pub mod program;
pub mod report;
pub mod stage;
pub mod suite;
