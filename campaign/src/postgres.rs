//! The only place that speaks with Postgres: the truth.

pub mod activity;
pub mod batch;
pub mod campaign;
pub mod consumed;
pub mod coupon;
pub mod database;
pub mod outbox;
pub mod parked;
pub mod persist;
pub mod snapshot;
