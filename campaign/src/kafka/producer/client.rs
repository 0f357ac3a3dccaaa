//! One client of the library: what it tells between sends, and whether it is of any use still.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, ClientContext, Message, Statistics,
    error::{KafkaError as ClientError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer},
};
use tokio::sync::oneshot;

use super::Delivery;
use crate::kafka::client::{KafkaError, is_stranded};

/// A younger client is kept even where it is broken: what breaks it may break the next one, too.
const LEAST_AGE: Duration = Duration::from_secs(5);

/// A client. Dropping it may take half a second.
pub(super) struct Client {
    inner: ThreadedProducer<Context>,
    made: Instant,
}

/// Why a client is no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worn {
    /// It has given up for good, or knows no broker any more.
    Broken,
    /// It has failed for so long, and nothing was acknowledged meanwhile.
    Stuck(Duration),
}

/// What the client tells between sends.
#[derive(Default)]
pub(super) struct Context {
    all_down: AtomicBool,
    broken: AtomicBool,
    transport_errors: AtomicU64,
    /// The first failure that no acknowledgement has followed.
    failing_since: Mutex<Option<Instant>>,
}

/// Travels with a record through the client.
pub(super) struct Ticket {
    answer: oneshot::Sender<Delivery>,
    errors_before: u64,
}

impl Client {
    /// `brokers_up`: false until it has reached one, where that was lost before.
    pub(super) fn start(config: &ClientConfig, brokers_up: bool) -> Result<Self, KafkaError> {
        let context = Context {
            all_down: AtomicBool::new(!brokers_up),
            ..Context::default()
        };
        let inner = config
            .create_with_context(context)
            .map_err(|error| KafkaError::Unsuitable(format!("the Kafka producer cannot be made: {error}")))?;
        Ok(Self {
            inner,
            made: Instant::now(),
        })
    }

    pub(super) fn ticket(&self, answer: oneshot::Sender<Delivery>) -> Box<Ticket> {
        let errors_before = self.context().transport_errors.load(Ordering::Relaxed);
        Box::new(Ticket { answer, errors_before })
    }

    pub(super) fn send(&self, message: BaseRecord<'_, [u8], [u8], Box<Ticket>>) {
        if let Err((error, refused)) = self.inner.send(message) {
            let _ = refused
                .delivery_opaque
                .answer
                .send(Delivery::NotStored(error.to_string()));
        }
    }

    /// Waits until all that was sent has its answer, at most `limit`.
    pub(super) fn flush(&self, limit: Duration) -> Result<(), ClientError> {
        self.inner.flush(limit)
    }

    pub(super) fn brokers_up(&self) -> bool {
        !self.context().all_down.load(Ordering::Relaxed) && !self.is_broken()
    }

    /// Whether it has given up for good, or knows no broker any more.
    pub(super) fn is_broken(&self) -> bool {
        self.context().broken.load(Ordering::Relaxed)
    }

    /// `patience`: how long it may fail without an acknowledgement.
    pub(super) fn worn(&self, now: Instant, patience: Duration) -> Option<Worn> {
        (now.saturating_duration_since(self.made) >= LEAST_AGE)
            .then(|| self.context().worn(now, patience))
            .flatten()
    }

    fn context(&self) -> &Context {
        self.inner.client().context()
    }
}

impl ClientContext for Context {
    fn error(&self, error: ClientError, reason: &str) {
        self.transport_errors.fetch_add(1, Ordering::Relaxed);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.broken.store(true, Ordering::Relaxed);
            tracing::error!(
                reason,
                "kafka producer is broken for good: the next record goes through a new one"
            );
            return;
        }
        let lost_all = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        if lost_all && !self.all_down.swap(true, Ordering::Relaxed) {
            tracing::warn!(reason, "kafka producer lost every broker");
        } else {
            tracing::debug!(%error, reason, "kafka producer error");
        }
    }

    fn stats(&self, statistics: Statistics) {
        if is_stranded(&statistics) {
            if !self.broken.swap(true, Ordering::Relaxed) {
                tracing::error!("kafka producer knows no broker any more: the next one takes over");
            }
        } else if statistics.brokers.values().any(|broker| broker.state == "UP") {
            self.back_up();
        }
    }
}

impl Context {
    fn back_up(&self) {
        if self.all_down.swap(false, Ordering::Relaxed) {
            tracing::info!("kafka producer reached a broker again");
        }
    }

    fn acknowledged(&self) {
        self.back_up();
        *self.failing_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn failed(&self, now: Instant) {
        self.failing_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(now);
    }

    fn worn(&self, now: Instant, patience: Duration) -> Option<Worn> {
        if self.broken.load(Ordering::Relaxed) {
            return Some(Worn::Broken);
        }
        let failing_since = *self.failing_since.lock().unwrap_or_else(PoisonError::into_inner);
        let failing = now.saturating_duration_since(failing_since?);
        (failing >= patience).then_some(Worn::Stuck(failing))
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let delivery = match result {
            Ok(message) => {
                self.acknowledged();
                Delivery::Acknowledged {
                    partition: message.partition(),
                    offset: message.offset(),
                }
            }
            Err((error, _)) => {
                let disturbed = self.transport_errors.load(Ordering::Relaxed) != ticket.errors_before;
                let judged = judge_failure(error, disturbed);
                if matches!(judged, Delivery::Unknown(_)) {
                    self.failed(Instant::now());
                }
                judged
            }
        };
        // The asker may be gone; the record's fate does not depend on it.
        let _ = ticket.answer.send(delivery);
    }
}

/// The client does not tell whether an earlier send of a failed record is unanswered. Only a size that the broker
/// refuses is refused alike by every send; anything else may hide a send that was stored.
fn judge_failure(error: &ClientError, disturbed: bool) -> Delivery {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::MessageSizeTooLarge) if !disturbed => Delivery::NotStored(error.to_string()),
        _ => Delivery::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::client::statistics;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_fatal_error_is_not_mended_by_a_broker_that_is_there() {
        let context = Context::default();
        context.error(ClientError::Global(RDKafkaErrorCode::AllBrokersDown), "gone");
        assert_eq!(context.worn(Instant::now(), PATIENCE), None);
        context.error(ClientError::Global(RDKafkaErrorCode::Fatal), "out of order");
        context.acknowledged();
        assert_eq!(context.worn(Instant::now(), PATIENCE), Some(Worn::Broken));
    }

    #[test]
    fn a_client_without_a_broker_to_ask_is_broken() {
        let context = Context::default();
        context.stats(statistics(&["logical", "configured"]));
        assert_eq!(context.worn(Instant::now(), PATIENCE), None);
        context.stats(statistics(&["internal", "logical"]));
        assert_eq!(context.worn(Instant::now(), PATIENCE), Some(Worn::Broken));
    }

    #[test]
    fn who_fails_for_long_and_is_acknowledged_nothing_is_stuck() {
        let context = Context::default();
        let start = Instant::now();
        assert_eq!(context.worn(start + PATIENCE, PATIENCE), None, "nothing was tried");
        context.failed(start);
        context.failed(start + PATIENCE / 2);
        assert_eq!(context.worn(start + PATIENCE / 2, PATIENCE), None);
        assert_eq!(context.worn(start + PATIENCE, PATIENCE), Some(Worn::Stuck(PATIENCE)));
        context.acknowledged();
        assert_eq!(context.worn(start + PATIENCE, PATIENCE), None);
    }

    #[test]
    fn only_a_size_that_every_send_would_meet_is_surely_not_stored() {
        let failure = |code| ClientError::MessageProduction(code);
        let too_large = failure(RDKafkaErrorCode::MessageSizeTooLarge);
        assert!(matches!(judge_failure(&too_large, false), Delivery::NotStored(_)));
        assert!(matches!(judge_failure(&too_large, true), Delivery::Unknown(_)));
        for code in [
            RDKafkaErrorCode::MessageTimedOut,
            RDKafkaErrorCode::TopicAuthorizationFailed,
            RDKafkaErrorCode::NotEnoughReplicasAfterAppend,
            RDKafkaErrorCode::RequestTimedOut,
            RDKafkaErrorCode::BrokerTransportFailure,
        ] {
            assert!(
                matches!(judge_failure(&failure(code), false), Delivery::Unknown(_)),
                "{code:?}"
            );
        }
    }
}
