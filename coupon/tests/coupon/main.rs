//! The command line against real servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod stack;
