//! The producer: idempotent, `acks=all`; its answers tell what surely was not stored from what may have been.

mod client;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::BaseRecord,
};
use tokio::sync::oneshot;

use self::client::{Client, Worn};
use super::client::{KafkaError, base_config};
use crate::settings::KafkaSettings;

/// How long records may fail, none being acknowledged, until they go through a new client, whatever keeps the old one. Long
/// enough that a broker's restart makes no new ones.
const PATIENCE: Duration = Duration::from_secs(20);

/// A producer; clones share it. Its client is made anew where it is broken or stuck, so that no process has to be started
/// again for it.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<Shared>,
}

struct Shared {
    client: ArcSwap<Client>,
    config: ClientConfig,
    /// How long a client tries to deliver a record.
    delivery_timeout: Duration,
    renewing: Mutex<()>,
    renewals: AtomicU64,
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
        let client = Client::start(&config, true)?;
        Ok(Self {
            shared: Arc::new(Shared {
                client: ArcSwap::from_pointee(client),
                config,
                delivery_timeout,
                renewing: Mutex::default(),
                renewals: AtomicU64::new(0),
            }),
        })
    }

    /// Hands the record over at once (never waits for room); the answer comes through the receiver. A full queue is
    /// [`Delivery::NotStored`]. A receiver that closes without an answer means unknown.
    pub fn send(&self, record: &Outgoing<'_>) -> oneshot::Receiver<Delivery> {
        let client = self.shared.client();
        let (answer, receiver) = oneshot::channel();
        let mut message = BaseRecord::with_opaque_to(record.topic, client.ticket(answer)).payload(record.value);
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
        client.send(message);
        receiver
    }

    /// False while the client has lost every broker: it says so at once, long before a delivery times out. True again
    /// within a second after it reached one. A client that has given up for good is made anew by this question, too: who
    /// has nothing to send must not stay without brokers for it.
    pub fn brokers_up(&self) -> bool {
        if self.shared.client.load().is_broken() {
            return self.shared.client().brokers_up();
        }
        self.shared.client.load().brokers_up()
    }

    /// How often its client was made anew.
    pub fn renewals(&self) -> u64 {
        self.shared.renewals.load(Ordering::Relaxed)
    }

    /// Waits until all that was sent has its answer, at most `limit`.
    pub async fn flush(&self, limit: Duration) -> Result<(), KafkaError> {
        let client = self.shared.client.load_full();
        let flushed = tokio::task::spawn_blocking(move || client.flush(limit)).await;
        match flushed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(KafkaError::unavailable("flush the producer", error)),
            Err(error) => Err(KafkaError::unavailable("flush the producer", error)),
        }
    }
}

impl Shared {
    /// The client for the next record.
    fn client(&self) -> Arc<Client> {
        let client = self.client.load_full();
        match client.worn(Instant::now(), self.patience()) {
            Some(worn) => self.renewed(client, worn),
            None => client,
        }
    }

    fn patience(&self) -> Duration {
        // A record that is not answered fails only then.
        PATIENCE.max(self.delivery_timeout * 4)
    }

    /// One at a time: who finds another at it goes on with what there is.
    fn renewed(&self, old: Arc<Client>, worn: Worn) -> Arc<Client> {
        let Ok(_renewing) = self.renewing.try_lock() else {
            return old;
        };
        let now = self.client.load_full();
        if !Arc::ptr_eq(&now, &old) {
            return now;
        }
        let new = match Client::start(&self.config, false) {
            Ok(new) => Arc::new(new),
            Err(error) => {
                tracing::error!(%error, ?worn, "kafka producer is of no use, and no new one can be made");
                return old;
            }
        };
        tracing::warn!(?worn, "kafka producer was made anew");
        self.client.store(new.clone());
        self.renewals.fetch_add(1, Ordering::Relaxed);
        drop(now);
        // What it has may still be stored, and its askers wait for the answer. Ending it takes time.
        let limit = self.delivery_timeout;
        std::thread::spawn(move || {
            let _ = old.flush(limit);
        });
        new
    }
}
