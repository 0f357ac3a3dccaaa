//! One connection, whatever the layout: a server, sentinels or a Cluster.

use crate::settings::RedisSettings;

/// A handle to Redis; clones share their connections. Nothing that was sent is ever sent again by itself.
#[derive(Clone)]
pub struct Redis {}

/// What went wrong on the way to Redis or in it.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// The command did not run: no connection, or the server refused before it ran (READONLY, OOM, LOADING, MOVED …).
    #[error("Redis did not run {what}: {reason}; check that the primary is reachable and writable")]
    NotRun {
        /// Which transition.
        what: &'static str,
        /// As the client or server put it.
        reason: String,
    },
    /// The command was sent and no answer came: it may have run.
    #[error("no answer from Redis to {what}: {reason}; it may have run")]
    Unanswered {
        /// Which transition.
        what: &'static str,
        /// As the client put it.
        reason: String,
    },
    /// The answer is none that this release knows.
    #[error("Redis answered {what} with {answer}, which this release does not know; do all pods run the same release?")]
    UnknownAnswer {
        /// Which transition.
        what: &'static str,
        /// What came.
        answer: String,
    },
    /// Refused at start.
    #[error("{0}")]
    Unsuitable(String),
}

impl Redis {
    /// Connects. Fails if no server answers.
    pub async fn connect(settings: &RedisSettings) -> Result<Self, RedisError> {
        let _ = settings;
        unimplemented!()
    }
}
