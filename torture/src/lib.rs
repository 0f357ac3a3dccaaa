//! Breaks the promise if it can be broken: real processes, real servers, faults at random from a seed, thousands of
//! clients, and a judgment over everything that they were told.
//!
//! `history` is what clients asked and were told, `checker` judges it (no I/O), `plan` draws the faults from a seed (no I/O),
//! `nemesis` inflicts them on a `system`, `crowd` are the clients, `owner` the campaigns' owner; `run` brings them
//! together for one seed, and `report` counts. `backlog` restarts everything at once before a great backlog.

pub mod backlog;
pub mod checker;
pub mod cli;
pub mod clock;
pub mod crowd;
pub mod history;
pub mod links;
pub mod nemesis;
pub mod owner;
pub mod plan;
pub mod process;
pub mod report;
pub mod run;
pub mod system;
pub mod verdict;
