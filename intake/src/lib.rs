//! The door: reserves a slot in Redis, publishes the claim to Kafka and answers.
//!
//! `door` holds the path of a claim and its pure decisions, `http` what the outside sees of it, `campaigns` what the
//! door knows of the campaigns without asking for each claim, `numbers` what a shop window
//! shows of them, `connections` how clients are served, and `startup` brings
//! them up and down.

pub mod campaigns;
pub mod connections;
pub mod door;
pub mod http;
pub mod metrics;
pub mod numbers;
pub mod settings;
pub mod startup;

pub use settings::IntakeSettings;
pub use startup::{Running, StartError, run, start};
