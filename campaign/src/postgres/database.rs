//! The connection pool, the migrations and the one error of this module.

use crate::settings::PostgresSettings;

/// A pool of connections; clones share it.
#[derive(Clone, Debug)]
pub struct Database {}

/// What went wrong with Postgres.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// No connection, a cut one, a serialization failure, a deadlock, a full disk …: try again. A commit whose answer was lost is also this.
    #[error("Postgres could not {what}: {source}")]
    Unavailable {
        /// What was tried.
        what: &'static str,
        /// As the client put it.
        source: sqlx::Error,
    },
    /// The data itself is refused (SQLSTATE classes 22 and 23): trying again changes nothing.
    #[error("Postgres refused the data of {what}: {source}")]
    DataRefused {
        /// What was tried.
        what: &'static str,
        /// As the server put it.
        source: sqlx::Error,
    },
    /// The schema is not the one of this release.
    #[error("the database lacks the migrations of this release ({0}); run `coupon migrate`")]
    NotMigrated(String),
}

impl Database {
    /// Connects and checks nothing else.
    pub async fn connect(settings: &PostgresSettings) -> Result<Self, DatabaseError> {
        let _ = settings;
        unimplemented!()
    }

    /// Brings the schema up to this release.
    pub async fn migrate(&self) -> Result<(), DatabaseError> {
        unimplemented!()
    }

    /// Refuses a schema older than this release (a newer one is fine: expand, then contract).
    pub async fn check_migrated(&self) -> Result<(), DatabaseError> {
        unimplemented!()
    }

    /// A trivial query, for readiness.
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        unimplemented!()
    }
}
