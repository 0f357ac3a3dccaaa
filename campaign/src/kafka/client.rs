//! Client properties and the one error of this module.

/// What went wrong with Kafka.
#[derive(Debug, thiserror::Error)]
pub enum KafkaError {
    /// The brokers cannot be reached or did not answer: unknown, not empty.
    #[error("Kafka could not {what}: {reason}; check that the brokers are reachable")]
    Unavailable {
        /// What was tried.
        what: &'static str,
        /// As the client put it.
        reason: String,
    },
    /// Refused at start: a topic is missing or set so that the promise cannot hold, or a property is wrong.
    #[error("{0}")]
    Unsuitable(String),
}
