//! Reads what an audit compares: the keys of a state as they lie there, without the judgment of the scripts. Reads only.

use redis::Value;

use super::{
    answer::Answer,
    connection::{Redis, RedisError},
};
use crate::{
    identity::{BatchId, RequestId, Reservation},
    name::CampaignName,
    naming::{Naming, StateKeys},
};

/// Elements that one read looks at.
const STEP: usize = 1_000;

/// Reads the keys of campaigns.
#[derive(Clone)]
pub struct StateAuditor {
    redis: Redis,
    naming: Naming,
}

/// A field of `users`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditedMarker {
    /// The user holds a slot.
    Holds(RequestId, Reservation),
    /// The user held a slot, was canceled, and the slot is free again.
    Canceled(RequestId),
    /// No release writes such a value.
    Unreadable(String),
}

/// A step through `users`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkerPage {
    /// User and marker. A user may come twice.
    pub markers: Vec<(String, AuditedMarker)>,
    /// Where the next step begins; `None` at the end.
    pub next: Option<String>,
}

impl StateAuditor {
    /// Reads through `redis` under the installation's names.
    pub fn new(redis: Redis, naming: Naming) -> Self {
        Self { redis, naming }
    }

    /// A step through the markers; `cursor` `None` begins. What was there all the time comes at least once.
    pub async fn markers(&self, campaign: &CampaignName, cursor: Option<&str>) -> Result<MarkerPage, RedisError> {
        let (next, flat) = self
            .scan("HSCAN", "read the markers", &self.naming.state(campaign).users, cursor)
            .await?;
        let markers = pairs(flat)
            // The empty field only keeps an empty hash in being.
            .filter(|(user, _)| !user.is_empty())
            .map(|(user, value)| (user, read_marker(value)))
            .collect();
        Ok(MarkerPage { markers, next })
    }

    /// The pending batches. An element that is no batch is an error.
    pub async fn pending(&self, campaign: &CampaignName) -> Result<Vec<BatchId>, RedisError> {
        let elements = self
            .all(
                "ZSCAN",
                "read the pending batches",
                &self.naming.state(campaign).pending,
            )
            .await?;
        let batches = elements
            .into_iter()
            .map(|(batch, _)| batch_of("read the pending batches", &batch));
        batches.collect()
    }

    /// Claims that still hold a slot, by pending batch.
    pub async fn pending_claims(&self, campaign: &CampaignName) -> Result<Vec<(BatchId, i64)>, RedisError> {
        let what = "read the pending claims";
        let elements = self
            .all("HSCAN", what, &self.naming.state(campaign).pending_claims)
            .await?;
        elements
            .into_iter()
            .map(|(batch, count)| {
                let number = count.parse().map_err(|_| unreadable(what, &count))?;
                Ok((batch_of(what, &batch)?, number))
            })
            .collect()
    }

    /// Keys that are there and will never expire.
    pub async fn keys_without_ttl(&self, campaign: &CampaignName) -> Result<Vec<String>, RedisError> {
        let StateKeys {
            meta,
            occupied,
            users,
            pending,
            pending_claims,
        } = self.naming.state(campaign);
        let mut lasting = Vec::new();
        for key in [meta, occupied, users, pending, pending_claims] {
            let what = "read the life of a key";
            let answer = self.ask(what, &key, redis::cmd("PTTL").arg(&key)).await?;
            match answer {
                Value::Int(-1) => lasting.push(key),
                Value::Int(_) => {}
                other => return Err(RedisError::unknown_answer(what, &other)),
            }
        }
        Ok(lasting)
    }

    async fn all(
        &self,
        command: &'static str,
        what: &'static str,
        key: &str,
    ) -> Result<Vec<(String, String)>, RedisError> {
        let mut found = std::collections::BTreeMap::new();
        let mut cursor = None;
        loop {
            let (next, flat) = self.scan(command, what, key, cursor.as_deref()).await?;
            found.extend(pairs(flat));
            if next.is_none() {
                return Ok(found.into_iter().collect());
            }
            cursor = next;
        }
    }

    async fn scan(
        &self,
        command: &'static str,
        what: &'static str,
        key: &str,
        cursor: Option<&str>,
    ) -> Result<(Option<String>, Vec<String>), RedisError> {
        let mut scan = redis::cmd(command);
        scan.arg(key).arg(cursor.unwrap_or("0")).arg("COUNT").arg(STEP);
        let value = self.ask(what, key, &scan).await?;
        let mut answer = Answer::new(what, value)?;
        let next = answer.text()?.to_owned();
        let flat: Vec<String> =
            redis::from_redis_value(answer.next()?.clone()).map_err(|error| unreadable(what, &error.to_string()))?;
        Ok(((next != "0").then_some(next), flat))
    }

    async fn ask(&self, what: &'static str, key: &str, command: &redis::Cmd) -> Result<Value, RedisError> {
        self.redis
            .send(key, command)
            .await
            .map_err(|failed| RedisError::from_failed(what, failed))
    }
}

fn pairs(flat: Vec<String>) -> impl Iterator<Item = (String, String)> {
    let mut elements = flat.into_iter();
    std::iter::from_fn(move || Some((elements.next()?, elements.next()?)))
}

fn batch_of(what: &'static str, text: &str) -> Result<BatchId, RedisError> {
    text.parse().map_err(|_| unreadable(what, text))
}

fn unreadable(what: &'static str, answer: &str) -> RedisError {
    RedisError::UnknownAnswer {
        what,
        answer: answer.to_owned(),
    }
}

fn read_marker(text: String) -> AuditedMarker {
    let read = text.split_once(' ').and_then(|(request, held)| {
        let request = request.parse().ok()?;
        match held {
            "canceled" => Some(AuditedMarker::Canceled(request)),
            reservation => Some(AuditedMarker::Holds(request, reservation.parse().ok()?)),
        }
    });
    read.unwrap_or(AuditedMarker::Unreadable(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_held_canceled_or_unreadable() {
        let request: RequestId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().expect("valid");
        let reservation: Reservation = "abcdefgh-7.3".parse().expect("valid");
        for (text, marker) in [
            (
                format!("{request} abcdefgh-7.3"),
                AuditedMarker::Holds(request, reservation),
            ),
            (format!("{request} canceled"), AuditedMarker::Canceled(request)),
            ("x".to_owned(), AuditedMarker::Unreadable("x".to_owned())),
            (
                format!("{request} x"),
                AuditedMarker::Unreadable(format!("{request} x")),
            ),
        ] {
            assert_eq!(read_marker(text), marker);
        }
    }
}
