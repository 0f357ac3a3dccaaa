//! What the end-to-end tests are written with. `command` runs programs, `chart` renders and installs the chart, `kubectl`
//! speaks to the cluster, `campaign` applies and watches campaigns, `burst` lets users claim from a Job inside the
//! cluster, `door` claims from here, `eventually` waits.
//!
//! The tests use the tools that people use: kubectl and helm.

pub mod burst;
pub mod campaign;
pub mod chart;
pub mod command;
pub mod door;
pub mod eventually;
pub mod kubectl;
