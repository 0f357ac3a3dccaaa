//! Failures that real systems of this kind had, run over the whole chain: intakes, Redis, Kafka, workers, Postgres.
//!
//! A module a promise; the name of a test says what must hold.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod chain;
mod deletion;
mod door_and_rows;
mod frozen_intake;
mod holders;
mod idempotency;
mod killed_intake;
mod killed_worker;
mod late_record;
mod layouts;
mod lost_answers;
#[cfg(feature = "mutants")]
mod mutants;
mod older_redis;
mod outage;
mod postgres_put_back;
mod process;
mod raise;
mod rebuild;
mod rebuild_overlaps;
mod rebuild_taken_over;
mod records;
mod shortened_topic;
mod sweeper;
