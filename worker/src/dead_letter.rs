//! What cannot be persisted: finding which claims the database refuses, and publishing them before they are given up.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use campaign::{
    kafka::producer::{Delivery, Outgoing, Producer},
    postgres::database::{Database, DatabaseError},
    record::{ClaimRecord, RecordError, RecordedClaim},
};

/// Most dead letters of one campaign within [`BUDGET_SPAN`]; the database keeps the same bound over all workers.
pub const BUDGET: usize = 20;
/// See [`BUDGET`].
pub const BUDGET_SPAN: Duration = Duration::from_secs(60);

/// A claim whose data the database refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedClaim {
    /// Its place in the record's list.
    pub index: usize,
    /// What the database said.
    pub reason: String,
}

/// Finds the claims of a record that the database refuses, by halving. Nothing is written.
pub async fn refused_claims(database: &Database, record: &ClaimRecord) -> Result<Vec<RefusedClaim>, DatabaseError> {
    let mut refused = Vec::new();
    let mut open: Vec<_> = std::iter::once(0..record.claims.len()).collect();
    while let Some(range) = open.pop() {
        let indexes: Vec<usize> = range.clone().collect();
        match database.try_rows(record, &indexes).await {
            Ok(()) => {}
            Err(error @ DatabaseError::DataRefused { .. }) => match indexes.as_slice() {
                [index] => refused.push(RefusedClaim {
                    index: *index,
                    reason: error.to_string(),
                }),
                _ => {
                    let middle = range.start + range.len() / 2;
                    // The lower half is looked at first.
                    open.push(middle..range.end);
                    open.push(range.start..middle);
                }
            },
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
}

/// A dead letter and what its headers tell.
#[derive(Clone, Debug)]
pub struct DeadLetter<'a> {
    /// The campaign, where it is known.
    pub key: Option<&'a [u8]>,
    /// The original bytes, or a record of one claim.
    pub value: &'a [u8],
    /// Why.
    pub reason: &'a str,
    /// How often it was tried.
    pub attempts: u32,
    /// Where it was read.
    pub topic: &'a str,
    /// Where it was read.
    pub partition: i32,
    /// Where it was read.
    pub offset: i64,
    /// When it first failed.
    pub first_failure: jiff::Timestamp,
}

/// Publishes a dead letter and waits for its acknowledgement.
pub async fn publish(producer: &Producer, dlq_topic: &str, letter: &DeadLetter<'_>) -> Result<(), DeadLetterError> {
    let delivery = producer
        .send(&Outgoing {
            topic: dlq_topic,
            key: letter.key,
            value: letter.value,
            headers: vec![
                ("reason", letter.reason.as_bytes().to_vec()),
                ("attempts", letter.attempts.to_string().into_bytes()),
                ("topic", letter.topic.as_bytes().to_vec()),
                ("partition", letter.partition.to_string().into_bytes()),
                ("offset", letter.offset.to_string().into_bytes()),
                ("first-failure", letter.first_failure.to_string().into_bytes()),
            ],
        })
        .await;
    match delivery {
        Ok(Delivery::Acknowledged { .. }) => Ok(()),
        Ok(Delivery::NotStored(reason) | Delivery::Unknown(reason)) => Err(DeadLetterError::NotAcknowledged(reason)),
        Err(_) => Err(DeadLetterError::NotAcknowledged("the producer is gone".to_owned())),
    }
}

/// Why a dead letter is not published; it is tried again, and nothing moves past it meanwhile.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// Kafka did not acknowledge it.
    #[error("the dead letter was not acknowledged: {0}; check the brokers and the dead letter topic")]
    NotAcknowledged(String),
    /// It cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The bytes of one claim as a record of its own.
pub fn one_claim(record: &ClaimRecord, claim: &RecordedClaim) -> Result<Vec<u8>, RecordError> {
    ClaimRecord {
        claims: vec![claim.clone()],
        ..record.clone()
    }
    .encode()
}

/// How many dead letters a campaign still may have.
#[derive(Debug, Default)]
pub struct DeadLetterBudget {
    spent: VecDeque<Instant>,
}

impl DeadLetterBudget {
    /// Spends `count` at once, or nothing: then how long to wait (never for more than the whole budget: such a record
    /// waits for somebody to look at it).
    pub fn spend(&mut self, count: usize, now: Instant) -> Result<(), Duration> {
        while self
            .spent
            .front()
            .is_some_and(|&at| now.duration_since(at) >= BUDGET_SPAN)
        {
            self.spent.pop_front();
        }
        if self.spent.len() + count <= BUDGET {
            self.spent.extend(std::iter::repeat_n(now, count));
            return Ok(());
        }
        Err(self
            .spent
            .front()
            .map_or(BUDGET_SPAN, |&at| BUDGET_SPAN.saturating_sub(now.duration_since(at))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_budget_within_its_span() {
        let mut budget = DeadLetterBudget::default();
        let start = Instant::now();
        for _ in 0..BUDGET / 2 {
            assert_eq!(budget.spend(2, start), Ok(()));
        }
        assert_eq!(budget.spend(1, start + BUDGET_SPAN / 2), Err(BUDGET_SPAN / 2));
        assert_eq!(budget.spend(BUDGET, start + BUDGET_SPAN), Ok(()));
    }

    #[test]
    fn more_than_the_whole_budget_is_never_spent() {
        let mut budget = DeadLetterBudget::default();
        assert!(budget.spend(BUDGET + 1, Instant::now()).is_err());
    }
}
