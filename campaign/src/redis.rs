//! The only place that speaks with Redis. Every transition is one script of `lua/`.

pub mod audit;
pub mod connection;
pub mod limit;
pub mod lock;
pub mod preflight;
pub mod state;

mod answer;
mod cluster;
mod failover;
mod node;
mod script;
mod sentinel;
