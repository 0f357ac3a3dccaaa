//! The promise holds in every state of every scope; without any one of the rules it does not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod holds;
mod mutants;
