//! One user's visit: claims, waits, asks again, until it is decided or the time is over.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use campaign::identity::{RequestId, UserId};
use tokio::time::Instant;

use super::{
    answer::{Outcome, Step, judge_claim, judge_status},
    behaviour::{Behaviour, patience},
    client::{Ask, Connection},
    tally::{Tally, either},
};

/// Between two questions for a status: this, doubled each time, up to the limit.
const POLL_FIRST: Duration = Duration::from_millis(20);
const POLL_LIMIT: Duration = Duration::from_secs(1);
/// After a broken connection.
const RECONNECT: Duration = Duration::from_millis(100);
/// Claims and questions of one click, so that nobody asks for ever.
const MOST_ASKS: u32 = 200;

/// What all visits share.
pub struct Visits {
    /// The campaign as it is sent.
    pub campaign: String,
    /// When the load ends, come what may.
    pub deadline: Instant,
}

/// One user.
pub struct Visit<'a> {
    /// What all share.
    pub visits: &'a Arc<Visits>,
    /// Who.
    pub user: &'a UserId,
    /// When he was due; latency counts from here for his first claim.
    pub due: Instant,
}

impl Visit<'_> {
    /// Does what `behaviour` says and counts it.
    pub async fn go(&self, behaviour: Behaviour, connections: &mut [Connection; 2], tally: &mut Tally) {
        let [first, second] = connections;
        let outcome = match behaviour {
            Behaviour::ClicksOnce => self.click("once", first, self.due, tally).await,
            Behaviour::HangsUp => {
                tally.hang_ups += 1;
                tally.claims += 1;
                let claim = self.claim("once");
                first.ask_and_hang_up(&claim, patience(rand::random())).await;
                self.click("once", first, Instant::now(), tally).await
            }
            Behaviour::ClicksTwice => {
                tally.double_clicks += 1;
                let mut other = Tally::default();
                // Two keys: two requests of one user, as two clicks of a page without idempotency would be.
                let (one, two) = tokio::join!(
                    self.click("first", first, self.due, tally),
                    self.click("second", second, self.due, &mut other),
                );
                tally.merge(other);
                either(one, two)
            }
        };
        // The other request may be one whose answer was lost: what became of it, its status tells.
        let outcome = match outcome {
            Some(Outcome::Duplicate(holder)) => self.follow(holder, first).await,
            decided => decided,
        };
        tally.outcome(self.user, outcome);
    }

    async fn click(
        &self,
        click: &str,
        connection: &mut Connection,
        due: Instant,
        tally: &mut Tally,
    ) -> Option<Outcome> {
        let claim = self.claim(click);
        let mut step = Step::AskAgain(Duration::ZERO);
        let mut due = Some(due);
        let mut poll = POLL_FIRST;
        for _ in 0..MOST_ASKS {
            step = match step {
                Step::Done(outcome) => return Some(outcome),
                Step::AskAgain(pause) => {
                    if !pause.is_zero() {
                        self.pause(pause).await?;
                    }
                    tally.claims += 1;
                    let sent_at = due.take().unwrap_or_else(Instant::now);
                    let reply = connection.ask(&claim).await;
                    let latency = sent_at.elapsed();
                    match reply {
                        Ok(reply) => {
                            let judgment = judge_claim(reply.status, reply.retry_after, &reply.body);
                            tally.answer(judgment.name, latency);
                            judgment.step
                        }
                        Err(error) => {
                            tracing::debug!(%error, "a claim has no answer");
                            tally.unanswered += 1;
                            Step::AskAgain(RECONNECT)
                        }
                    }
                }
                Step::AskStatus(request) => {
                    self.pause(poll).await?;
                    poll = (poll * 2).min(POLL_LIMIT);
                    self.status(request, connection).await
                }
            };
        }
        None
    }

    /// Asks until the request of an earlier click is decided.
    async fn follow(&self, holder: RequestId, connection: &mut Connection) -> Option<Outcome> {
        let mut poll = POLL_FIRST;
        for _ in 0..MOST_ASKS {
            match self.status(holder, connection).await {
                Step::Done(Outcome::Success(request)) => return Some(Outcome::Success(request)),
                Step::AskStatus(_) => {}
                _ => return Some(Outcome::Duplicate(holder)),
            }
            self.pause(poll).await?;
            poll = (poll * 2).min(POLL_LIMIT);
        }
        None
    }

    async fn status(&self, request: RequestId, connection: &mut Connection) -> Step {
        let path = format!(
            "/coupon-issues/{request}?campaign={}&userId={}",
            percent_encoded(&self.visits.campaign),
            percent_encoded(self.user.as_str())
        );
        match connection.ask(&Ask::Get(path)).await {
            Ok(reply) => judge_status(request, reply.status, &reply.body),
            Err(error) => {
                tracing::debug!(%error, "a status has no answer");
                Step::AskStatus(request)
            }
        }
    }

    fn claim(&self, click: &str) -> Ask {
        let body = serde_json::json!({"campaign": self.visits.campaign, "userId": self.user.as_str()});
        Ask::Claim {
            body: Bytes::from(body.to_string()),
            key: click.to_owned(),
        }
    }

    /// `None`: the load's time is over.
    async fn pause(&self, pause: Duration) -> Option<()> {
        let until = Instant::now() + pause;
        if until >= self.visits.deadline {
            return None;
        }
        tokio::time::sleep_until(until).await;
        Some(())
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut encoded, byte| {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
            encoded
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_query_would_misread_is_encoded() {
        assert_eq!(percent_encoded("shop/sale"), "shop%2Fsale");
        assert_eq!(percent_encoded("a b&ü-1"), "a%20b%26%C3%BC-1");
    }
}
