//! Makes claims coupons: persists them under a fenced lock, sweeps what nobody brought to an end, relays events and
//! projects them.
//!
//! A record's way: `dispatch` takes it from the consumer into the window of its partition (`assignment` over
//! `partition`) and hands it to the queue of its campaign (`campaign_queue`), whose task (`persist`) decides it in one
//! transaction. What cannot be persisted goes through `dead_letter`. Beside it run `sweeper`, `relay`, `projection` and `topic_watch`.

pub mod absence;
pub mod assignment;
pub mod backoff;
pub mod campaign_queue;
pub mod dead_letter;
pub mod dispatch;
pub mod health;
pub mod metrics;
pub mod partition;
pub mod persist;
pub mod projection;
pub mod relay;
pub mod settings;
pub mod silence;
pub mod startup;
pub mod sweeper;
pub mod topic_watch;
