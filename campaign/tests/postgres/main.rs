//! The truth in Postgres, against a real server. Every test has a database of its own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod abandon;
mod align;
mod campaigns;
mod consumed;
mod dead_letters;
mod migrations;
mod outbox;
mod persist;
mod redemption;
mod shop;
mod shortened;
mod snapshot;
mod topic_recovery;
