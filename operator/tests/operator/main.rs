//! The operator against a mock of the API server, real Redis, Kafka and Postgres, and the rules of its CRD.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api_server;
mod campaigns;
mod crd;
mod election;
mod scaling;
mod watching;
