//! Failures that real systems of this kind had, run over the whole chain: intakes, Redis, Kafka, workers, Postgres.
//!
//! A module a promise; the name of a test says what must hold.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod chain;
mod deletion;
mod door_and_rows;
mod idempotency;
mod killed_intake;
mod layouts;
mod lost_answers;
mod outage;
mod process;
mod rebuild;
mod rebuild_taken_over;
