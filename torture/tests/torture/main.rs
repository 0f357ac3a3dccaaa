//! The checker against planted faults: one that finds nothing proves nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod clean;
mod planted;
mod stage;
