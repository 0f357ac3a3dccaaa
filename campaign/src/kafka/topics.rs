//! The topics: created for development, checked at start.

use super::client::KafkaError;
use crate::{naming::Naming, settings::KafkaSettings};

/// Creates the topics that are missing, with `replication`.
pub async fn create(settings: &KafkaSettings, naming: &Naming, replication: i32) -> Result<(), KafkaError> {
    let _ = (settings, naming, replication);
    unimplemented!()
}

/// Refuses missing topics and, unless `dev`, settings under which an acknowledged record can be lost.
pub async fn check(settings: &KafkaSettings, naming: &Naming, dev: bool) -> Result<(), KafkaError> {
    let _ = (settings, naming, dev);
    unimplemented!()
}
