//! The producer: idempotent, `acks=all`; its answers tell what surely was not stored from what may have been.

use std::time::Duration;

use super::client::KafkaError;
use crate::settings::KafkaSettings;

/// A producer; clones share it.
#[derive(Clone)]
pub struct Producer {}

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
    /// It surely is not stored and never will be: refused before any send.
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
    /// `delivery_timeout` bounds how long the client tries (`publishTimeout`).
    pub fn start(settings: &KafkaSettings, delivery_timeout: Duration) -> Result<Self, KafkaError> {
        let _ = (settings, delivery_timeout);
        unimplemented!()
    }

    /// Hands the record over at once (never waits for room); the answer comes through the receiver. A full queue is `NotStored`.
    pub fn send(&self, record: &Outgoing<'_>) -> tokio::sync::oneshot::Receiver<Delivery> {
        let _ = record;
        unimplemented!()
    }

    /// False while the client has lost every broker (it says so at once, long before a delivery times out). True again once it talked to one.
    pub fn brokers_up(&self) -> bool {
        unimplemented!()
    }

    /// Waits until all that was sent has its answer, at most `limit`.
    pub async fn flush(&self, limit: Duration) -> Result<(), KafkaError> {
        let _ = limit;
        unimplemented!()
    }
}
