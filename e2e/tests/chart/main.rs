//! What the chart renders: all that a cluster without a network plugin and a Prometheus operator cannot show.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod definitions;
mod network;
mod notes;
mod pods;
mod rights;
mod servers;
mod types;
mod values;

const DEV: &str = "values-dev.yaml";
const PRODUCTION: &str = "tests/production.yaml";
const REDIS_CLUSTER: &str = "tests/redis-cluster.yaml";
