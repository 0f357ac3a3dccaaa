//! The producer: idempotent, `acks=all`; its answers tell what surely was not stored from what may have been.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    ClientContext, Message, Statistics,
    client::Client,
    error::{KafkaError as ClientError, RDKafkaErrorCode},
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer},
};
use tokio::sync::oneshot;

use super::client::{KafkaError, base_config};
use crate::settings::KafkaSettings;

/// A producer; clones share it.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<ThreadedProducer<Context>>,
}

/// What became of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Every in-sync replica has it.
    Acknowledged {
        /// Where.
        partition: i32,
        /// Where in there.
        offset: i64,
    },
    /// It surely is not stored and never will be.
    NotStored(String),
    /// It may be stored, or may yet be.
    Unknown(String),
}

/// A record to send.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The key; `None` spreads.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: &'a [u8],
    /// Headers.
    pub headers: Vec<(&'a str, Vec<u8>)>,
}

/// What the client tells between sends.
#[derive(Default)]
struct Context {
    all_down: AtomicBool,
    broken: AtomicBool,
    transport_errors: AtomicU64,
}

/// Travels with a record through the client.
struct Ticket {
    answer: oneshot::Sender<Delivery>,
    errors_before: u64,
}

impl ClientContext for Context {
    fn error(&self, error: ClientError, reason: &str) {
        self.transport_errors.fetch_add(1, Ordering::Relaxed);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.broken.store(true, Ordering::Relaxed);
            tracing::error!(
                reason,
                "kafka producer is broken for good: this process has to be started again"
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
        if statistics.brokers.values().any(|broker| broker.state == "UP") {
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
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let delivery = match result {
            Ok(message) => {
                self.back_up();
                Delivery::Acknowledged {
                    partition: message.partition(),
                    offset: message.offset(),
                }
            }
            Err((error, _)) => {
                let disturbed = self.transport_errors.load(Ordering::Relaxed) != ticket.errors_before;
                judge_failure(error, disturbed)
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

impl Producer {
    /// For many small records; `delivery_timeout` bounds how long the client tries (`publishTimeout`).
    pub fn start(settings: &KafkaSettings, delivery_timeout: Duration) -> Result<Self, KafkaError> {
        // Few requests may be under way at once, so that records that come together go together: without it, they would
        // wait for requests of one record each.
        Self::start_with(settings, delivery_timeout, "2")
    }

    /// For records that are groups themselves: each goes at once, and shares a request only where it has to wait for
    /// one.
    pub fn start_for_groups(settings: &KafkaSettings, delivery_timeout: Duration) -> Result<Self, KafkaError> {
        Self::start_with(settings, delivery_timeout, "0")
    }

    fn start_with(settings: &KafkaSettings, delivery_timeout: Duration, linger_ms: &str) -> Result<Self, KafkaError> {
        let mut config = base_config(settings)?;
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.timeout.ms", delivery_timeout.as_millis().max(1).to_string())
            .set("linger.ms", linger_ms)
            // A client that connects only where it thinks it has to has been seen not to connect any more: after a broker
            // came back without a leader for the partitions, all records timed out for ever.
            .set("enable.sparse.connections", "false")
            // Tells that a broker is back although nothing is sent.
            .set("statistics.interval.ms", "1000");
        let inner = config
            .create_with_context(Context::default())
            .map_err(|error| KafkaError::Unsuitable(format!("the Kafka producer cannot be made: {error}")))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Hands the record over at once (never waits for room); the answer comes through the receiver. A full queue is
    /// [`Delivery::NotStored`]. A receiver that closes without an answer means unknown.
    pub fn send(&self, record: &Outgoing<'_>) -> oneshot::Receiver<Delivery> {
        let (answer, receiver) = oneshot::channel();
        let ticket = Box::new(Ticket {
            answer,
            errors_before: self.context().transport_errors.load(Ordering::Relaxed),
        });
        let mut message: BaseRecord<'_, [u8], [u8], Box<Ticket>> =
            BaseRecord::with_opaque_to(record.topic, ticket).payload(record.value);
        if let Some(key) = record.key {
            message = message.key(key);
        }
        if !record.headers.is_empty() {
            let headers = record
                .headers
                .iter()
                .fold(OwnedHeaders::new(), |headers, (key, value)| {
                    headers.insert(Header {
                        key,
                        value: Some(value),
                    })
                });
            message = message.headers(headers);
        }
        if let Err((error, refused)) = self.inner.send(message) {
            let _ = refused
                .delivery_opaque
                .answer
                .send(Delivery::NotStored(error.to_string()));
        }
        receiver
    }

    /// False while the client has lost every broker: it says so at once, long before a delivery times out. True again
    /// within a second after it reached one. Also false once it [is broken](Self::is_broken).
    pub fn brokers_up(&self) -> bool {
        !self.context().all_down.load(Ordering::Relaxed) && !self.is_broken()
    }

    /// Whether the client has given up for good, as an idempotent producer does when the broker's account of its records
    /// cannot be brought together with its own: only a new process sends again.
    pub fn is_broken(&self) -> bool {
        self.context().broken.load(Ordering::Relaxed)
    }

    /// Waits until all that was sent has its answer, at most `limit`.
    pub async fn flush(&self, limit: Duration) -> Result<(), KafkaError> {
        let inner = self.inner.clone();
        let flushed = tokio::task::spawn_blocking(move || inner.flush(limit)).await;
        match flushed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(KafkaError::unavailable("flush the producer", error)),
            Err(error) => Err(KafkaError::unavailable("flush the producer", error)),
        }
    }

    fn context(&self) -> &Context {
        let client: &Client<Context> = self.inner.client();
        client.context()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fatal_error_is_not_mended_by_a_broker_that_is_there() {
        let context = Context::default();
        context.error(ClientError::Global(RDKafkaErrorCode::AllBrokersDown), "gone");
        assert!(!context.broken.load(Ordering::Relaxed));
        context.error(ClientError::Global(RDKafkaErrorCode::Fatal), "out of order");
        context.back_up();
        assert!(context.broken.load(Ordering::Relaxed));
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
