//! What every binary does around its work: logs, and an orderly end on SIGTERM or SIGINT.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Flags of every binary.
#[derive(Clone, Debug, Args)]
pub struct LogSettings {
    /// How logs are written, to standard error.
    #[arg(long, env = "COUPON_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged, as `level` or `target=level`, comma-separated.
    #[arg(long, env = "COUPON_LOG", default_value = "info")]
    pub log: String,
}

/// Where the Postgres client logs what the server notes.
const NOTICES: &str = "sqlx::postgres::notice";

/// What kept a process from starting.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The filter cannot be read.
    #[error("--log {filter:?} is not a filter like `info` or `intake=debug,info`: {reason}")]
    Filter {
        /// What was given.
        filter: String,
        /// As its reader put it.
        reason: String,
    },
    /// A subscriber is there already.
    #[error("logs are set up twice: {0}")]
    Logs(String),
    /// The system does not deliver signals.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] io::Error),
}

impl LogSettings {
    /// What is logged. Postgres' notices (a table that a migration finds there) are no news, unless somebody asks.
    fn filter(&self) -> Result<EnvFilter, ProcessError> {
        let filter = if self.log.contains(NOTICES) {
            self.log.clone()
        } else {
            format!("{},{NOTICES}=warn", self.log)
        };
        EnvFilter::try_new(filter).map_err(|error| ProcessError::Filter {
            filter: self.log.clone(),
            reason: error.to_string(),
        })
    }

    /// Sets logs up for the whole process.
    pub fn install(&self) -> Result<(), ProcessError> {
        let filter = self.filter()?;
        let logs = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr);
        match self.log_format {
            LogFormat::Text => logs.try_init(),
            // The list has the innermost span, too.
            LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).try_init(),
        }
        .map_err(|error| ProcessError::Logs(error.to_string()))
    }
}

/// Is canceled by the first SIGTERM or SIGINT.
pub fn shutdown_on_signals() -> Result<CancellationToken, ProcessError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = CancellationToken::new();
    let asked = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end");
        asked.cancel();
    });
    Ok(shutdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_postgres_are_logged_for_those_who_ask() {
        for (log, notices) in [
            ("info", "sqlx::postgres::notice=warn"),
            ("worker=debug,warn", "sqlx::postgres::notice=warn"),
            ("info,sqlx::postgres::notice=info", "sqlx::postgres::notice=info"),
        ] {
            let settings = LogSettings {
                log_format: LogFormat::Text,
                log: log.to_owned(),
            };
            let filter = settings.filter().expect("a filter").to_string();
            assert_eq!(filter.matches("sqlx::postgres::notice").count(), 1, "{log}: {filter}");
            assert!(filter.contains(notices), "{log}: {filter}");
        }
    }

    #[test]
    fn a_filter_that_is_none_is_shown_as_it_was_given() {
        let settings = LogSettings {
            log_format: LogFormat::Text,
            log: "worker=loud".to_owned(),
        };
        let error = settings.filter().expect_err("no level").to_string();
        assert!(error.starts_with("--log \"worker=loud\" is not a filter"), "{error}");
    }
}
