//! What the tests of the other crates rest on: servers start, stop, lose what they should, and end with their parent.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod installation;
mod kafka;
mod parent;
mod postgres;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_sentinel;
