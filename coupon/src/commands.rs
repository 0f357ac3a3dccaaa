//! One file a command: its arguments and what it prints.

pub mod apply;
pub mod campaigns;
pub mod delete;
pub mod dev;
pub mod dlq;
pub mod limit;
pub mod migrate;
pub mod rebuild;
pub mod topics;
