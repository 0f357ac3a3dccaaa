//! The protocol as a model, small enough to look at every order in which its steps can happen.
//!
//! Each process (door, worker, sweeper, rebuilder, relay, writers of terms) is a machine of small steps: one script, one
//! transaction or one read is one step, and any step of any other process may come between two of them.
//! [`scope`] says how many users, attempts, processes and faults there are; [`promise`] says what must hold in every
//! state; [`mutant`] lists the rules that can be left out, so that it is seen that the promise needs them.
//! `docs/architecture.md` tells what this covers and what not.

mod door;
pub mod explore;
pub mod mutant;
mod postgres;
pub mod promise;
pub mod protocol;
mod rebuilder;
mod redis;
mod relay;
pub mod scope;
pub mod state;
mod sweeper;
mod terms;
mod worker;
