//! Reads topics by offset, without a group: for the rebuild and the sweeper. Every partition answers, or it is an error.

use std::{collections::HashMap, time::Duration};

use super::client::KafkaError;
use crate::settings::KafkaSettings;

/// First and next offset of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Oldest record still there.
    pub low: i64,
    /// Where the next record will go (what a transaction-free reader can read up to).
    pub high: i64,
}

/// Reads offsets and records.
#[derive(Clone)]
pub struct TopicReader {}

impl TopicReader {
    /// Each answer may take `timeout`.
    pub fn new(settings: &KafkaSettings, timeout: Duration) -> Result<Self, KafkaError> {
        let _ = (settings, timeout);
        unimplemented!()
    }

    /// Watermarks of every partition, asked from the leaders now. A partition that cannot be read is an error.
    pub async fn watermarks(&self, topic: &str) -> Result<HashMap<i32, Watermarks>, KafkaError> {
        let _ = topic;
        unimplemented!()
    }

    /// Reads every record from `from` (absent: the low watermark) up to, not including, `to`, and gives each to `each` as (partition, offset, value).
    /// `each` runs on a blocking thread; an `Err` from it stops. Ends only when every partition reached `to`.
    pub async fn read<F>(
        &self,
        topic: &str,
        from: HashMap<i32, i64>,
        to: HashMap<i32, i64>,
        each: F,
    ) -> Result<(), KafkaError>
    where
        F: FnMut(i32, i64, &[u8]) -> std::ops::ControlFlow<()> + Send + 'static,
    {
        let _ = (topic, from, to, each);
        unimplemented!()
    }
}
