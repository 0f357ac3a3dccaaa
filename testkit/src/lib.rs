//! Real Redis, Kafka and Postgres for tests and for the local stack, each a child process on a free loopback port with
//! a folder of its own, and a proxy that breaks the wire.
//!
//! A child never outlives the process that launched it, however that one ends (see [`child`]).

pub mod child;
pub mod eventually;
pub mod installation;
pub mod kafka;
pub mod ports;
pub mod postgres;
pub mod program;
pub mod proxy;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;
