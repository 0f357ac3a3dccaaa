//! The only place that speaks with Kafka.

pub mod client;
pub mod consumer;
pub mod offsets;
pub mod producer;
pub mod topics;
