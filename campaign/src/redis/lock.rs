//! The distributed lock: fenced, renewed at a third of its life, released by its owner only.

use std::time::{Duration, Instant};

use rand::Rng as _;
use tokio::{sync::watch, task::JoinHandle};
use tracing::warn;

use super::{
    answer::Answer,
    connection::{Redis, RedisError},
    script,
};

/// The last token outlives every lease by far, so that tokens grow also when the server's clock is set back.
const LAST_TOKEN_LIFE_MS: i64 = 7 * 24 * 3600 * 1000;

/// A waiter tries again after a random time in this range, in ms.
const RETRY_PAUSE_MS: std::ops::Range<u64> = 20..80;

/// Takes locks.
#[derive(Clone)]
pub struct Locks {
    redis: Redis,
}

/// A lock that is held. A background task renews it until it is dropped or released. Dropping it leaves the key to its
/// lease.
pub struct Held {
    redis: Redis,
    key: String,
    token: i64,
    until: watch::Receiver<Until>,
    renewal: JoinHandle<()>,
}

/// How long a lock is ours by our own clock, counted from before the request: never longer than the server thinks.
#[derive(Clone, Copy)]
enum Until {
    Held(Instant),
    Lost,
}

impl Locks {
    /// Locks through `redis`.
    pub fn new(redis: Redis) -> Self {
        Self { redis }
    }

    /// One try. `floor` is the largest token known elsewhere (`campaign.fence`): the new token is larger.
    pub async fn try_acquire(&self, key: &str, lease: Duration, floor: i64) -> Result<Option<Held>, RedisError> {
        let asked = Instant::now();
        let last = format!("{key}:token");
        let value = self
            .redis
            .run(&script::LOCK_ACQUIRE, &[key, &last], |command| {
                command.arg(milliseconds(lease)).arg(floor).arg(LAST_TOKEN_LIFE_MS);
            })
            .await?;
        let mut answer = Answer::new(script::LOCK_ACQUIRE.name, value)?;
        match answer.integer()? {
            0 => Ok(None),
            1 => Ok(Some(Held::new(
                self.redis.clone(),
                key.to_owned(),
                answer.integer()?,
                lease,
                asked,
            ))),
            _ => Err(answer.unknown()),
        }
    }

    /// Tries until `wait` is over (jittered pauses, no fixed rhythm).
    pub async fn acquire(
        &self,
        key: &str,
        lease: Duration,
        floor: i64,
        wait: Duration,
    ) -> Result<Option<Held>, RedisError> {
        let deadline = Instant::now() + wait;
        loop {
            if let Some(held) = self.try_acquire(key, lease, floor).await? {
                return Ok(Some(held));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let pause = Duration::from_millis(rand::rng().random_range(RETRY_PAUSE_MS));
            tokio::time::sleep(pause.min(left)).await;
        }
    }
}

impl Held {
    fn new(redis: Redis, key: String, token: i64, lease: Duration, asked: Instant) -> Self {
        let (sender, until) = watch::channel(Until::Held(asked + lease));
        let renewal = tokio::spawn(renew(redis.clone(), key.clone(), token, lease, asked + lease, sender));
        Self {
            redis,
            key,
            token,
            until,
            renewal,
        }
    }

    /// The fencing token. Tokens only grow, also after a flush.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// False once a renewal failed or the lease ran out by our own clock.
    pub fn is_held(&self) -> bool {
        match *self.until.borrow() {
            Until::Held(until) => Instant::now() < until,
            Until::Lost => false,
        }
    }

    /// Resolves when the lock is lost.
    pub async fn lost(&self) {
        let mut until = self.until.clone();
        loop {
            let Until::Held(end) = *until.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(end.into()) => return,
                changed = until.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Gives it back (only if it is still ours). An error is harmless: the lease runs out.
    pub async fn release(self) -> Result<(), RedisError> {
        self.renewal.abort();
        self.redis
            .run(&script::LOCK_RELEASE, &[&self.key], |command| {
                command.arg(self.token);
            })
            .await
            .map(drop)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Renews until the lock is lost. A failed try is repeated sooner: an answer may have been lost on the way.
async fn renew(redis: Redis, key: String, token: i64, lease: Duration, mut end: Instant, until: watch::Sender<Until>) {
    let keys = [key.as_str()];
    let mut pause = lease / 3;
    loop {
        tokio::time::sleep(pause).await;
        let asked = Instant::now();
        if asked >= end {
            break;
        }
        let attempt = redis.run(&script::LOCK_RENEW, &keys, |command| {
            command.arg(token).arg(milliseconds(lease));
        });
        let answer = match tokio::time::timeout_at(end.into(), attempt).await {
            Ok(answer) => answer,
            Err(_) => break,
        };
        match answer.and_then(|value| Answer::new(script::LOCK_RENEW.name, value)?.integer()) {
            Ok(1) => {
                end = asked + lease;
                pause = lease / 3;
                until.send_replace(Until::Held(end));
            }
            Ok(_) => break,
            Err(error) => {
                warn!(%error, lock = %key, "a lock was not renewed, trying again");
                pause = lease / 10;
            }
        }
    }
    warn!(lock = %key, token, "a lock was lost");
    until.send_replace(Until::Lost);
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
