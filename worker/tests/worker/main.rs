//! The worker against real Redis, Kafka and Postgres. Each test has an installation and a campaign of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod dead_letters;
mod fixture;
mod limit;
mod locks;
mod outages;
mod persist;
mod rebalance;
mod relay;
mod sweeper;
mod topics_anew;
