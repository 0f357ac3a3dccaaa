//! A settled campaign is clean; whatever is spoiled in one of the three servers, the audit names it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod claims;
mod clean;
mod events;
mod slots;
mod stage;
mod successes;
