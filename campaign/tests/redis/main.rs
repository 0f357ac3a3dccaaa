//! The transitions of a campaign's state, the lock and the limit, against real Redis servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod history;
mod life;
mod limit;
mod lock;
mod model;
mod preflight;
mod rebuild;
mod reserve;
mod servers;
mod terms;
