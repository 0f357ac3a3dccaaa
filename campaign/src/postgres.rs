//! The only place that speaks with Postgres: the truth.

pub mod activity;
pub mod audit;
pub mod batch;
pub mod campaign;
pub mod consumed;
pub mod coupon;
mod cut;
pub mod database;
pub mod deletion;
mod issue;
pub mod outbox;
pub mod parked;
pub mod persist;
pub mod shortened;
pub mod snapshot;
