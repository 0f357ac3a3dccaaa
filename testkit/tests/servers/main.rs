//! What the tests of the other crates rest on: servers start, stop, lose what they should, and end with their parent.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod kafka;
mod postgres;
mod proxy;
mod redis;
