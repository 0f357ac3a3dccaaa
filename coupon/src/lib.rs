//! The command line: a local stack of real servers, and what an operator of an installation does by hand.
//!
//! `cli` names the commands, `commands` has one file for each, `stack` is the local stack that several of them use,
//! `connections` opens an installation that runs somewhere, and `audit` compares what its servers hold.

pub mod audit;
pub mod cli;
pub mod commands;
pub mod connections;
pub mod given;
pub mod stack;
