//! The command line: a local stack of real servers, and what an operator of an installation does by hand.
//!
//! `cli` names the commands, `commands` has one file for each, `stack` is the local stack that several of them use,
//! `connections` opens an installation that runs somewhere, `patience` waits for one that starts. `load` lets users claim
//! over HTTP, `audit` compares what the servers hold, and `demo` does both with a stack.

pub mod audit;
pub mod cli;
pub mod commands;
pub mod connections;
pub mod demo;
pub mod given;
pub mod load;
pub mod patience;
pub mod stack;
