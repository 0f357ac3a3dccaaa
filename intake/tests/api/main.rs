//! The door over HTTP, on real Redis, Kafka and Postgres. A module a route, and one for each way to fail.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod app;
mod bad_input;
mod campaign;
mod claim;
mod coupons;
mod health;
mod kafka_outage;
mod lost_answers;
mod openapi;
mod overload;
mod rebuild;
mod shutdown;
mod slow_clients;
mod slow_redis;
mod startup;
mod status;
mod unknown_names;
mod window;
