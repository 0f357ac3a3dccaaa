//! What is answered to a claim, and why. Functions without I/O.

use std::{collections::HashMap, time::Duration};

use campaign::{
    identity::RequestId,
    kafka::{offsets::PastEnd, producer::Delivery},
    mutant::{self, Mutant},
    redis::{
        connection::RedisError,
        state::{Refusal, ReserveOutcome},
    },
};
use jiff::Timestamp;

use crate::metrics::PublishResult;

/// What one claim is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Reserved, and acknowledged by Kafka in time.
    Success(RequestId),
    /// An earlier attempt of this request is not decided yet.
    Pending(RequestId),
    /// Another request of this user holds the coupon.
    Duplicate(RequestId),
    /// No slot is free.
    SoldOut,
    /// The window opens later.
    NotOpenYet(Timestamp),
    /// The window is over.
    Closed,
    /// Paused by the campaign's owner.
    Paused,
    /// The state is being built.
    Rebuilding,
    /// Too many claims are on their way.
    Overloaded,
    /// Kafka does not take records; nothing is reserved.
    KafkaError,
    /// Kafka may or may not have the claim.
    KafkaUnknown(RequestId),
    /// Redis did not run the reserve call; nothing is reserved.
    StateUnavailable,
    /// Redis may or may not have reserved; the claim is not published and will be given back.
    StateUnknown(RequestId),
}

/// An [`Answer`] without its data: the metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is explained at its answer")]
pub enum AnswerKind {
    Success,
    Pending,
    Duplicate,
    SoldOut,
    NotOpenYet,
    Closed,
    Paused,
    Rebuilding,
    Overloaded,
    KafkaError,
    KafkaUnknown,
    StateUnavailable,
    StateUnknown,
}

impl AnswerKind {
    /// In the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Success,
        Self::Pending,
        Self::Duplicate,
        Self::SoldOut,
        Self::NotOpenYet,
        Self::Closed,
        Self::Paused,
        Self::Rebuilding,
        Self::Overloaded,
        Self::KafkaError,
        Self::KafkaUnknown,
        Self::StateUnavailable,
        Self::StateUnknown,
    ];

    /// The metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Pending => "pending",
            Self::Duplicate => "duplicate",
            Self::SoldOut => "sold_out",
            Self::NotOpenYet => "not_open_yet",
            Self::Closed => "closed",
            Self::Paused => "paused",
            Self::Rebuilding => "rebuilding",
            Self::Overloaded => "overloaded",
            Self::KafkaError => "kafka_error",
            Self::KafkaUnknown => "kafka_unknown",
            Self::StateUnavailable => "state_unavailable",
            Self::StateUnknown => "state_unknown",
        }
    }
}

impl Answer {
    /// Without its data.
    pub fn kind(self) -> AnswerKind {
        match self {
            Self::Success(_) => AnswerKind::Success,
            Self::Pending(_) => AnswerKind::Pending,
            Self::Duplicate(_) => AnswerKind::Duplicate,
            Self::SoldOut => AnswerKind::SoldOut,
            Self::NotOpenYet(_) => AnswerKind::NotOpenYet,
            Self::Closed => AnswerKind::Closed,
            Self::Paused => AnswerKind::Paused,
            Self::Rebuilding => AnswerKind::Rebuilding,
            Self::Overloaded => AnswerKind::Overloaded,
            Self::KafkaError => AnswerKind::KafkaError,
            Self::KafkaUnknown(_) => AnswerKind::KafkaUnknown,
            Self::StateUnavailable => AnswerKind::StateUnavailable,
            Self::StateUnknown(_) => AnswerKind::StateUnknown,
        }
    }
}

/// The answer to a claim that needs no record; `None` where a slot was reserved and Kafka has to acknowledge it first.
pub fn at_once(outcome: ReserveOutcome, request: RequestId) -> Option<Answer> {
    match outcome {
        ReserveOutcome::Success => None,
        ReserveOutcome::Duplicate(holder) => Some(Answer::Duplicate(holder)),
        ReserveOutcome::SoldOut => Some(Answer::SoldOut),
        ReserveOutcome::Settled => Some(Answer::Success(request)),
        ReserveOutcome::InFlight => Some(Answer::Pending(request)),
    }
}

/// What a refused reserve call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For each of its claims.
    pub answer: Answer,
    /// Whether the state has to be built.
    pub rebuild: bool,
}

/// Judges a refusal. `closes_at` is the snapshot's: a sale that is over needs no state any more.
pub fn refused(refusal: Refusal, closes_at: Option<Timestamp>, now: Timestamp) -> Refused {
    let over = closes_at.is_some_and(|closes_at| closes_at <= now);
    let (answer, rebuild) = match refusal {
        Refusal::NotInitialized if over => (Answer::Closed, false),
        // `rebuilding` may be what a rebuilder that died left behind: another one takes over once the lock is free.
        Refusal::NotInitialized | Refusal::Rebuilding => (Answer::Rebuilding, true),
        Refusal::NotOpenYet(opens_at) => (Answer::NotOpenYet(opens_at), false),
        Refusal::Closed => (Answer::Closed, false),
        Refusal::Paused => (Answer::Paused, false),
    };
    Refused { answer, rebuild }
}

/// The answer to a claim whose reserve call failed. Only what surely did not run is a plain refusal.
pub fn reserve_failed(error: &RedisError, request: RequestId) -> Answer {
    match error {
        RedisError::NotRun { .. } => Answer::StateUnavailable,
        RedisError::Unanswered { .. } | RedisError::UnknownAnswer { .. } | RedisError::Unsuitable(_) => {
            Answer::StateUnknown(request)
        }
    }
}

/// What becomes of the reserved claims of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Each is a SUCCESS.
    Accepted,
    /// None is stored: give the slots back, answer the Kafka error.
    GivenBack,
    /// Give nothing back, answer the Kafka error with `outcome: unknown`: the worker or the sweeper decides.
    Undecided,
}

impl Fate {
    /// The answer to a claim.
    pub fn answer(self, request: RequestId) -> Answer {
        match self {
            Self::Accepted => Answer::Success(request),
            Self::GivenBack => Answer::KafkaError,
            Self::Undecided => Answer::KafkaUnknown(request),
        }
    }
}

/// Whether a record may still be sent, `elapsed` after the moment before its reserve call.
pub fn may_publish(elapsed: Duration, publish_timeout: Duration) -> bool {
    elapsed < publish_timeout
}

/// How a publish ended. `elapsed` is the time from just before the reserve call to the delivery report.
pub fn published(delivery: &Delivery, elapsed: Duration, publish_timeout: Duration) -> PublishResult {
    match delivery {
        // Later than that, a rebuild may have read the topic's end without it.
        Delivery::Acknowledged { .. }
            if elapsed > publish_timeout && !mutant::is(Mutant::SuccessOnLateAcknowledgement) =>
        {
            PublishResult::Late
        }
        Delivery::Acknowledged { .. } => PublishResult::Acknowledged,
        Delivery::NotStored(_) => PublishResult::NotStored,
        Delivery::Unknown(_) => PublishResult::Unknown,
    }
}

/// Whether an acknowledgement proves that the topic was made anew or cut back: the record lies below what was consumed of
/// its partition before it was sent. Where the broker has recognized a record that was sent twice, the client library
/// knows no offset and gives a negative one: that is an acknowledgement, and proves nothing.
pub fn below_consumed(delivery: &Delivery, consumed: &HashMap<i32, i64>) -> Option<PastEnd> {
    let Delivery::Acknowledged { partition, offset } = *delivery else {
        return None;
    };
    let consumed = consumed
        .get(&partition)
        .copied()
        .filter(|consumed| (0..*consumed).contains(&offset))?;
    Some(PastEnd {
        partition,
        consumed,
        end: offset + 1,
    })
}

/// What a publish's end means for its claims.
pub fn fate(result: PublishResult) -> Fate {
    match result {
        PublishResult::Acknowledged => Fate::Accepted,
        PublishResult::NotStored | PublishResult::NotSent => Fate::GivenBack,
        PublishResult::Unknown if mutant::is(Mutant::ReleaseOnUnknownPublish) => Fate::GivenBack,
        PublishResult::Late | PublishResult::Unknown | PublishResult::Unreadable => Fate::Undecided,
    }
}

/// Whether a publish's end says that Kafka takes records (`Some(true)`), does not (`Some(false)`), or nothing about it.
pub fn kafka_takes_records(result: PublishResult) -> Option<bool> {
    match result {
        PublishResult::Acknowledged => Some(true),
        PublishResult::Late | PublishResult::NotStored | PublishResult::Unknown => Some(false),
        PublishResult::NotSent | PublishResult::Unreadable => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);
    const ACKNOWLEDGED: Delivery = Delivery::Acknowledged {
        partition: 3,
        offset: 7,
    };

    /// What the client library calls an invalid offset.
    const UNKNOWN_OFFSET: i64 = -1001;

    fn request(n: u128) -> RequestId {
        RequestId(Uuid::from_u128(n))
    }

    #[test]
    fn kinds_are_numbered_in_their_order() {
        for (i, kind) in AnswerKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
        }
    }

    #[test]
    fn only_a_fresh_reservation_waits_for_kafka() {
        let ours = request(1);
        let table = [
            (ReserveOutcome::Success, None),
            (
                ReserveOutcome::Duplicate(request(2)),
                Some(Answer::Duplicate(request(2))),
            ),
            (ReserveOutcome::SoldOut, Some(Answer::SoldOut)),
            (ReserveOutcome::Settled, Some(Answer::Success(ours))),
            (ReserveOutcome::InFlight, Some(Answer::Pending(ours))),
        ];
        for (outcome, answer) in table {
            assert_eq!(at_once(outcome, ours), answer, "{outcome:?}");
        }
    }

    #[test]
    fn success_needs_an_acknowledgement_within_the_timeout() {
        let not_stored = Delivery::NotStored("queue full".into());
        let unknown = Delivery::Unknown("timed out".into());
        let table = [
            (&ACKNOWLEDGED, Duration::ZERO, Answer::Success(request(1))),
            (&ACKNOWLEDGED, TIMEOUT, Answer::Success(request(1))),
            (
                &ACKNOWLEDGED,
                TIMEOUT + Duration::from_nanos(1),
                Answer::KafkaUnknown(request(1)),
            ),
            (&ACKNOWLEDGED, TIMEOUT * 3, Answer::KafkaUnknown(request(1))),
            (&not_stored, Duration::ZERO, Answer::KafkaError),
            (&not_stored, TIMEOUT * 2, Answer::KafkaError),
            (&unknown, Duration::ZERO, Answer::KafkaUnknown(request(1))),
            (&unknown, TIMEOUT * 2, Answer::KafkaUnknown(request(1))),
        ];
        for (delivery, elapsed, answer) in table {
            let result = published(delivery, elapsed, TIMEOUT);
            assert_eq!(
                fate(result).answer(request(1)),
                answer,
                "{delivery:?} after {elapsed:?}"
            );
        }
    }

    #[test]
    fn only_an_offset_below_what_was_consumed_proves_a_shortened_topic() {
        let unknown = Delivery::Unknown("timed out".into());
        let at = |offset| Delivery::Acknowledged { partition: 3, offset };
        for (delivery, consumed, end) in [
            (&ACKNOWLEDGED, vec![(3, 8)], Some(8)),
            (&ACKNOWLEDGED, vec![(3, 7)], None),
            (&ACKNOWLEDGED, vec![(2, 8)], None),
            (&ACKNOWLEDGED, vec![], None),
            (&unknown, vec![(3, 8)], None),
            (&at(0), vec![(3, 8)], Some(1)),
            (&at(-1), vec![(3, 8)], None),
            (&at(UNKNOWN_OFFSET), vec![(3, 8)], None),
        ] {
            let found = below_consumed(delivery, &consumed.iter().copied().collect());
            let expected = end.map(|end| PastEnd {
                partition: 3,
                consumed: 8,
                end,
            });
            assert_eq!(found, expected, "{delivery:?} {consumed:?}");
        }
    }

    #[test]
    fn slots_are_given_back_only_where_nothing_can_be_stored() {
        let table = [
            (PublishResult::Acknowledged, Fate::Accepted, Some(true)),
            (PublishResult::Late, Fate::Undecided, Some(false)),
            (PublishResult::NotStored, Fate::GivenBack, Some(false)),
            (PublishResult::Unknown, Fate::Undecided, Some(false)),
            (PublishResult::NotSent, Fate::GivenBack, None),
            (PublishResult::Unreadable, Fate::Undecided, None),
        ];
        for (result, expected, takes) in table {
            assert_eq!(fate(result), expected, "{result:?}");
            assert_eq!(kafka_takes_records(result), takes, "{result:?}");
        }
    }

    #[test]
    fn nothing_is_sent_once_the_timeout_has_passed() {
        assert!(may_publish(Duration::ZERO, TIMEOUT));
        assert!(may_publish(TIMEOUT - Duration::from_nanos(1), TIMEOUT));
        assert!(!may_publish(TIMEOUT, TIMEOUT));
    }

    #[test]
    fn a_missing_state_is_built_unless_the_sale_is_over() {
        let now = Timestamp::from_second(1_000).unwrap();
        let earlier = Timestamp::from_second(999).unwrap();
        let later = Timestamp::from_second(1_001).unwrap();
        let table = [
            (Refusal::NotInitialized, None, Answer::Rebuilding, true),
            (Refusal::NotInitialized, Some(later), Answer::Rebuilding, true),
            (Refusal::NotInitialized, Some(now), Answer::Closed, false),
            (Refusal::NotInitialized, Some(earlier), Answer::Closed, false),
            (Refusal::Rebuilding, None, Answer::Rebuilding, true),
            (Refusal::NotOpenYet(later), None, Answer::NotOpenYet(later), false),
            (Refusal::Closed, None, Answer::Closed, false),
            (Refusal::Paused, None, Answer::Paused, false),
        ];
        for (refusal, closes_at, answer, rebuild) in table {
            assert_eq!(
                refused(refusal, closes_at, now),
                Refused { answer, rebuild },
                "{refusal:?} closing {closes_at:?}"
            );
        }
    }

    #[test]
    fn only_what_did_not_run_is_known_to_have_reserved_nothing() {
        let what = "reserve";
        let table = [
            (
                RedisError::NotRun {
                    what,
                    reason: String::new(),
                },
                Answer::StateUnavailable,
            ),
            (
                RedisError::Unanswered {
                    what,
                    reason: String::new(),
                },
                Answer::StateUnknown(request(1)),
            ),
            (
                RedisError::UnknownAnswer {
                    what,
                    answer: "77".into(),
                },
                Answer::StateUnknown(request(1)),
            ),
        ];
        for (error, answer) in table {
            assert_eq!(reserve_failed(&error, request(1)), answer, "{error:?}");
        }
    }
}
