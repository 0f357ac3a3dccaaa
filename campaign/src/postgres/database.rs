//! The connection pool, the migrations and the one error of this module.

use std::{
    future::Future,
    ops::{Deref, DerefMut},
    str::FromStr,
    time::Duration,
};

use jiff::Timestamp;
use sqlx::{
    PgConnection, PgPool, Postgres, Row,
    migrate::{MigrateError, Migrator},
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions, PgRow},
};

use crate::settings::PostgresSettings;

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// How long to wait for a free connection, including a new one.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server lets a statement wait for a lock, so that a hung holder is an error to retry.
const LOCK_TIMEOUT: &str = "5s";
/// How long the server lets a statement run.
const STATEMENT_TIMEOUT: &str = "20s";
/// How long the server lets a transaction sit idle: a stopped process must not keep a campaign's row for itself.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "30s";
/// How long an operation may take by our own clock: a connection that went dead in silence gives no error at all.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A pool of connections; clones share it.
#[derive(Clone, Debug)]
pub struct Database {
    pool: PgPool,
}

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
    #[error("Postgres refused the data of: {what}: {source}")]
    DataRefused {
        /// What was tried.
        what: &'static str,
        /// As the server put it.
        source: sqlx::Error,
    },
    /// The schema is not the one of this release.
    #[error("the database lacks the migrations of this release ({0}); run `coupon migrate`")]
    NotMigrated(String),
    /// The migrations that were applied are not ours.
    #[error("the database cannot be migrated: {0}; is it the database of another application?")]
    Migration(#[source] MigrateError),
}

impl DatabaseError {
    /// Sorts an error by whether trying again can help.
    pub(super) fn new(what: &'static str, source: sqlx::Error) -> Self {
        let refused = source
            .as_database_error()
            .and_then(|error| error.code())
            .is_some_and(|code| data_is_refused(&code));
        if refused {
            Self::DataRefused { what, source }
        } else {
            Self::Unavailable { what, source }
        }
    }
}

/// Class 22: data exceptions; class 23: integrity violations. All others depend on the server, not on the data.
fn data_is_refused(sqlstate: &str) -> bool {
    sqlstate.starts_with("22") || sqlstate.starts_with("23")
}

impl Database {
    /// Connects and checks nothing else. TLS as the URL says (`?sslmode=verify-full&sslrootcert=…`).
    pub async fn connect(settings: &PostgresSettings) -> Result<Self, DatabaseError> {
        let what = "connect";
        let options = PgConnectOptions::from_str(&settings.postgres_url)
            .map_err(|source| DatabaseError::new(what, source))?
            .application_name("coupon")
            .options([
                ("lock_timeout", LOCK_TIMEOUT),
                ("statement_timeout", STATEMENT_TIMEOUT),
                ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT),
            ]);
        let pool = PgPoolOptions::new()
            .max_connections(settings.postgres_pool)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_with(options)
            .await
            .map_err(|source| DatabaseError::new(what, source))?;
        Ok(Self { pool })
    }

    /// Brings the schema up to this release. Several at once are safe (an advisory lock); migrations of a newer release
    /// stay.
    pub async fn migrate(&self) -> Result<(), DatabaseError> {
        let what = "migrate the schema";
        let mut session = self
            .session()
            .await
            .map_err(|source| DatabaseError::new(what, source))?;
        // A migration, and the wait for another process' one, may take long. The session is closed afterwards, and
        // with it go these settings and, after an error, the lock.
        sqlx::raw_sql("SET lock_timeout = 0; SET statement_timeout = 0")
            .execute(&mut *session)
            .await
            .map_err(|source| DatabaseError::new(what, source))?;
        let migrator = Migrator {
            migrations: MIGRATIONS.migrations.clone(),
            ignore_missing: true,
            ..Migrator::DEFAULT
        };
        migrator
            .run_direct(None, &mut *session, false)
            .await
            .map_err(|error| match error {
                MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
                    DatabaseError::new(what, source)
                }
                other => DatabaseError::Migration(other),
            })
    }

    /// Refuses a schema older than this release (a newer one is fine: expand, then contract).
    pub async fn check_migrated(&self) -> Result<(), DatabaseError> {
        let applied = within("read the applied migrations", async {
            let mut session = self.session().await?;
            let rows = sqlx::query("SELECT version FROM _sqlx_migrations WHERE success")
                .fetch_all(&mut *session)
                .await?;
            session.finish();
            rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()
        })
        .await;
        let applied = match applied {
            Ok(applied) => applied,
            Err(DatabaseError::Unavailable { source, .. }) if is_undefined_table(&source) => {
                return Err(DatabaseError::NotMigrated("it has none at all".to_owned()));
            }
            Err(error) => return Err(error),
        };
        let missing: Vec<String> = MIGRATIONS
            .iter()
            .filter(|migration| !applied.contains(&migration.version))
            .map(|migration| format!("{:04} {}", migration.version, migration.description))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(DatabaseError::NotMigrated(missing.join(", ")))
        }
    }

    /// A trivial query, for readiness.
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        within("answer a ping", async {
            let mut session = self.session().await?;
            sqlx::query("SELECT 1").execute(&mut *session).await?;
            session.finish();
            Ok(())
        })
        .await
    }

    /// A connection of the pool.
    pub(super) async fn session(&self) -> Result<Session, sqlx::Error> {
        Ok(Session {
            connection: self.pool.acquire().await?,
            finished: false,
        })
    }
}

fn is_undefined_table(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.code().as_deref() == Some("42P01"))
}

/// One operation's connection. It goes back to the pool only when the operation came to its end: one that was given up
/// half way (an error, a timeout, a dropped future) may be dead or inside a transaction, and is closed.
pub(super) struct Session {
    connection: PoolConnection<Postgres>,
    finished: bool,
}

impl Session {
    /// Opens a transaction. READ COMMITTED, as everywhere here: what must not change is locked.
    pub(super) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("BEGIN").execute(&mut **self).await.map(drop)
    }

    /// Commits. An error means: unknown.
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("COMMIT").execute(&mut *self).await?;
        self.finish();
        Ok(())
    }

    /// Gives everything up, and frees the locks before it answers.
    pub(super) async fn rollback(mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("ROLLBACK").execute(&mut *self).await?;
        self.finish();
        Ok(())
    }

    /// Undoes what the transaction wrote, and leaves an empty one to commit.
    pub(super) async fn undo(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("ROLLBACK; BEGIN").execute(&mut **self).await.map(drop)
    }

    /// Gives the connection back.
    pub(super) fn finish(mut self) {
        self.finished = true;
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.finished {
            self.connection.close_on_drop();
        }
    }
}

/// Runs an operation within our own time limit and names it in the error.
pub(super) async fn within<T>(
    what: &'static str,
    operation: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, DatabaseError> {
    bounded(what, async {
        operation.await.map_err(|source| DatabaseError::new(what, source))
    })
    .await
}

/// As [`within`], for operations with an error type of their own.
pub(super) async fn bounded<T, E: From<DatabaseError>>(
    what: &'static str,
    operation: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::time::timeout(OPERATION_TIMEOUT, operation)
        .await
        .unwrap_or_else(|_| {
            let error = std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("no answer within {} s", OPERATION_TIMEOUT.as_secs()),
            );
            Err(DatabaseError::new(what, sqlx::Error::Io(error)).into())
        })
}

/// Reads a column that holds one of our own types as text.
pub(super) fn parsed<T>(row: &PgRow, column: &str) -> Result<T, sqlx::Error>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.try_get::<&str, _>(column)?
        .parse()
        .map_err(|error: T::Err| undecodable(column, error))
}

/// Reads a column that holds microseconds since 1970 (see [`micros`]).
pub(super) fn timestamp(row: &PgRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    Timestamp::from_microsecond(row.try_get(column)?).map_err(|error| undecodable(column, error))
}

/// As [`timestamp`], where null is allowed.
pub(super) fn optional_timestamp(row: &PgRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    row.try_get::<Option<i64>, _>(column)?
        .map(|micros| Timestamp::from_microsecond(micros).map_err(|error| undecodable(column, error)))
        .transpose()
}

/// The error of a column that this release cannot read.
pub(super) fn undecodable(column: &str, error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_owned(),
        source: Box::new(error),
    }
}

/// SQL of a `timestamptz` column as exact microseconds since 1970.
macro_rules! micros {
    ($column:literal) => {
        concat!("(extract(epoch FROM ", $column, ") * 1000000)::bigint")
    };
}
pub(super) use micros;

/// SQL of a parameter in microseconds since 1970 as `timestamptz`.
macro_rules! from_micros {
    ($parameter:literal) => {
        concat!(
            "('epoch'::timestamptz + ",
            $parameter,
            "::bigint * interval '1 microsecond')"
        )
    };
}
pub(super) use from_micros;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_data_itself_is_ever_refused() {
        for (sqlstate, refused) in [
            ("22001", true),
            ("22P05", true),
            ("23505", true),
            ("23514", true),
            ("08006", false),
            ("40001", false),
            ("40P01", false),
            ("42P01", false),
            ("53100", false),
            ("53300", false),
            ("55P03", false),
            ("57014", false),
            ("57P01", false),
            ("XX000", false),
        ] {
            assert_eq!(data_is_refused(sqlstate), refused, "{sqlstate}");
        }
    }
}
