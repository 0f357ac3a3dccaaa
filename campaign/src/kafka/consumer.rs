//! A member of a consumer group that starts every partition where Postgres says, not where Kafka does.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::client::KafkaError;
use crate::settings::KafkaSettings;

/// What happens to a member.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// These partitions are ours now; each is held back until `start` tells where to begin.
    Assigned(Vec<i32>),
    /// These are no longer ours: forget what is in memory.
    Revoked(Vec<i32>),
    /// A record.
    Record(ConsumedRecord),
}

/// A record as it came.
#[derive(Clone, Debug)]
pub struct ConsumedRecord {
    /// Where.
    pub partition: i32,
    /// Where in there.
    pub offset: i64,
    /// Key, if any.
    pub key: Option<Bytes>,
    /// Value; empty where there was none.
    pub value: Bytes,
    /// When the broker appended it, in ms.
    pub appended_at: Option<i64>,
}

/// A member of a group on one topic. A thread of its own polls; dropping it leaves the group.
pub struct GroupConsumer {}

impl GroupConsumer {
    /// Joins. Events arrive in order through the receiver; a full channel holds the poll back (bounded).
    pub fn join(
        settings: &KafkaSettings,
        group: &str,
        topic: &str,
        session_timeout: Duration,
    ) -> Result<(Self, mpsc::Receiver<ConsumerEvent>), KafkaError> {
        let _ = (settings, group, topic, session_timeout);
        unimplemented!()
    }

    /// Begins or moves a partition: the next record delivered is the one at `offset` (or the first after it). Records
    /// of before that are still in the channel have other offsets: the caller drops what it does not expect.
    pub fn start(&self, partition: i32, offset: i64) {
        let _ = (partition, offset);
        unimplemented!()
    }

    /// Holds a partition back (its window is full).
    pub fn pause(&self, partition: i32) {
        let _ = partition;
        unimplemented!()
    }

    /// Lets it go on.
    pub fn resume(&self, partition: i32) {
        let _ = partition;
        unimplemented!()
    }

    /// Commits offsets to Kafka, only so that lag can be seen.
    pub fn show_progress(&self, partition: i32, next_offset: i64) {
        let _ = (partition, next_offset);
        unimplemented!()
    }

    /// Leaves the group.
    pub async fn leave(self) {
        unimplemented!()
    }
}
