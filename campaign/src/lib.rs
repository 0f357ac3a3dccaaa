//! What intake, worker, operator and command line share: the names and identities of a campaign, its state in
//! Redis, its truth in Postgres and its claims in Kafka.
//!
//! Decisions are functions without I/O (`naming`, `record`, `decision`, `conservation`); each server is spoken to by
//! one module (`redis`, `postgres`, `kafka`); `rebuild`, `align` and `topic_recovery` bring them together.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod align;
pub mod conservation;
pub mod event;
pub mod identity;
pub mod kafka;
pub mod manifest;
pub mod mutant;
pub mod name;
pub mod naming;
pub mod postgres;
pub mod process;
pub mod rebuild;
pub mod record;
pub mod redis;
pub mod settings;
pub mod topic_recovery;
