//! One connection, whatever the layout: a server, sentinels or a Cluster.

use std::sync::Arc;

use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, Value};

use super::{
    cluster::Cluster,
    node::{Failed, Node, Target},
    script::Script,
    sentinel::Sentinels,
};
use crate::settings::{RedisMode, RedisSettings};

/// A handle to Redis; clones share their connections and pipeline over them. Nothing that may have run is ever sent
/// again by itself.
#[derive(Clone)]
pub struct Redis {
    layout: Arc<Layout>,
}

enum Layout {
    /// A server, or the primary that sentinels name.
    One { primary: Arc<Node>, replicated: bool },
    /// A Cluster.
    Cluster(Cluster),
}

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

impl RedisError {
    pub(super) fn unknown_answer(what: &'static str, answer: &Value) -> Self {
        Self::UnknownAnswer {
            what,
            answer: format!("{answer:?}"),
        }
    }

    pub(super) fn from_failed(what: &'static str, failed: Failed) -> Self {
        match failed {
            Failed::NotSent(reason) => Self::NotRun { what, reason },
            Failed::Refused { code, message } if refused_before_it_ran(&code, &message) => {
                Self::NotRun { what, reason: message }
            }
            Failed::Refused { message: reason, .. } | Failed::Lost(reason) => Self::Unanswered { what, reason },
        }
    }
}

/// Whether an error reply means that nothing of a script has run. The server checks these before it starts, or (READONLY,
/// OOM, MISCONF, NOREPLICAS) at the script's first write and never after it. Anything else may have stopped it half way.
fn refused_before_it_ran(code: &str, message: &str) -> bool {
    match code {
        "NOSCRIPT" | "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN"
        | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" | "BUSY" | "NOAUTH" | "WRONGPASS" => true,
        // A user may be allowed EVALSHA and not a command inside; then the script stopped there.
        "NOPERM" => !message.contains("script"),
        _ => false,
    }
}

impl Redis {
    /// Connects. Fails if no server answers.
    pub async fn connect(settings: &RedisSettings) -> Result<Self, RedisError> {
        let servers = settings
            .redis_urls
            .iter()
            .map(|url| parse(url))
            .collect::<Result<Vec<_>, _>>()?;
        let first = servers
            .first()
            .cloned()
            .ok_or_else(|| RedisError::Unsuitable("no Redis URL is given: set COUPON_REDIS_URLS".to_owned()))?;
        let timeout = settings.redis_timeout;
        let layout = match settings.redis_mode {
            RedisMode::Single if servers.len() > 1 => {
                return Err(RedisError::Unsuitable(
                    "several Redis URLs need COUPON_REDIS_MODE=sentinel or cluster".to_owned(),
                ));
            }
            RedisMode::Single => {
                let info = with_credentials(first, settings);
                Layout::One {
                    primary: Arc::new(Node::new(Target::Fixed(Box::new(info)), timeout)),
                    replicated: false,
                }
            }
            RedisMode::Sentinel => {
                // Credentials in the URLs are the sentinels' own.
                let sentinels = Sentinels {
                    primary: with_credentials(first.set_redis_settings(Default::default()), settings),
                    sentinels: servers,
                    name: settings.redis_sentinel_master.clone(),
                };
                Layout::One {
                    primary: Arc::new(Node::new(Target::Primary(Box::new(sentinels)), timeout)),
                    replicated: true,
                }
            }
            RedisMode::Cluster => {
                let seeds = servers
                    .into_iter()
                    .map(|info| with_credentials(info, settings))
                    .collect();
                Layout::Cluster(
                    Cluster::connect(seeds, timeout)
                        .await
                        .map_err(|failed| RedisError::from_failed("connect", failed))?,
                )
            }
        };
        let redis = Self {
            layout: Arc::new(layout),
        };
        redis.ping().await?;
        Ok(redis)
    }

    /// Whether every primary answers.
    pub async fn ping(&self) -> Result<(), RedisError> {
        for node in self.primaries("ping").await? {
            node.send(&redis::cmd("PING"))
                .await
                .map_err(|failed| RedisError::from_failed("ping", failed))?;
        }
        Ok(())
    }

    /// Runs a script. The first key decides which server.
    pub(super) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        fill: impl Fn(&mut Cmd),
    ) -> Result<Value, RedisError> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys);
            fill(&mut command);
            command
        };
        let key = keys.first().copied().unwrap_or_default();
        let answer = self.send(key, &command("EVALSHA", script.hash())).await;
        match answer {
            Err(Failed::Refused { code, .. }) if code == "NOSCRIPT" => {
                self.send(key, &command("EVAL", script.source())).await
            }
            answer => answer,
        }
        .map_err(|failed| RedisError::from_failed(script.name, failed))
    }

    /// The primaries that hold campaigns.
    pub(super) async fn primaries(&self, what: &'static str) -> Result<Vec<Arc<Node>>, RedisError> {
        match self.layout.as_ref() {
            Layout::One { primary, .. } => Ok(vec![Arc::clone(primary)]),
            Layout::Cluster(cluster) => cluster
                .primaries()
                .await
                .map_err(|failed| RedisError::from_failed(what, failed)),
        }
    }

    /// Sends any command to the server that has `key`.
    pub(super) async fn send(&self, key: &str, command: &Cmd) -> Result<Value, Failed> {
        match self.layout.as_ref() {
            Layout::One { primary, .. } => primary.send(command).await,
            Layout::Cluster(cluster) => cluster.send(key, command).await,
        }
    }

    /// Whether another server may take over from the primary without our knowing of its replicas now.
    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.layout.as_ref(), Layout::One { replicated: true, .. })
    }

    /// Whether this is a Cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.layout.as_ref(), Layout::Cluster(_))
    }
}

fn parse(url: &str) -> Result<ConnectionInfo, RedisError> {
    // The URL may hold a password: it is not shown.
    url.into_connection_info().map_err(|error| {
        RedisError::Unsuitable(format!(
            "a Redis URL cannot be read ({}): want redis://host:port or rediss://host:port",
            error.category()
        ))
    })
}

fn with_credentials(info: ConnectionInfo, settings: &RedisSettings) -> ConnectionInfo {
    let mut redis = info.redis_settings().clone();
    if redis.username().is_none()
        && let Some(username) = &settings.redis_username
    {
        redis = redis.set_username(username);
    }
    if redis.password().is_none()
        && let Some(password) = &settings.redis_password
    {
        redis = redis.set_password(password);
    }
    info.set_redis_settings(redis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_refused_before_it_ran_counts_as_not_run() {
        for code in [
            "NOSCRIPT",
            "READONLY",
            "OOM",
            "LOADING",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "MOVED",
            "BUSY",
            "NOAUTH",
        ] {
            assert!(refused_before_it_ran(code, "no"), "{code}");
        }
        for code in ["ERR", "WRONGTYPE", "EXECABORT", "WHAT"] {
            assert!(!refused_before_it_ran(code, "no"), "{code}");
        }
        assert!(refused_before_it_ran(
            "NOPERM",
            "this user has no permissions to run the 'evalsha' command"
        ));
        assert!(!refused_before_it_ran(
            "NOPERM",
            "no permissions to run 'hset' script: 1f, on @user_script:3."
        ));
    }

    #[test]
    fn an_unreadable_url_is_refused_without_showing_it() {
        let error = parse("redis//:secret@host").expect_err("no URL").to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
