//! Reads topics by offset, without a group: for the rebuild and the sweeper. Every partition answers, or it is an error.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, ClientContext, Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    error::KafkaError as ClientError,
};

use super::client::{KafkaError, base_config, blocking};
use crate::settings::KafkaSettings;

/// Pause before leaders are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// First and next offset of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Oldest record still there.
    pub low: i64,
    /// Where the next record will go.
    pub high: i64,
}

/// A partition that is said to be consumed further than it reaches: the topic was made anew or cut back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastEnd {
    /// Which.
    pub partition: i32,
    /// Consumed up to here.
    pub consumed: i64,
    /// Where it ends.
    pub end: i64,
}

/// What goes wrong is an answer's error. The client library would also log it, and the end of a partition with it.
struct Quiet;

impl ClientContext for Quiet {
    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!(%error, reason, "kafka reader error");
    }
}

impl ConsumerContext for Quiet {}

/// Reads offsets and records.
#[derive(Clone)]
pub struct TopicReader {
    config: ClientConfig,
    timeout: Duration,
}

impl TopicReader {
    /// Each answer may take `timeout`.
    pub fn new(settings: &KafkaSettings, timeout: Duration) -> Result<Self, KafkaError> {
        let mut config = base_config(settings)?;
        config
            // Never joined and never committed to; the client wants a name.
            .set("group.id", "coupon-reader")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            // A reader that falls out of range must say so, not jump.
            .set("auto.offset.reset", "error")
            // Bounds the memory of a reader to a few batches.
            .set("queued.max.messages.kbytes", "4096")
            .set("fetch.wait.max.ms", "50");
        Ok(Self { config, timeout })
    }

    /// Watermarks of every partition, asked from the leaders now. A partition that cannot be read is an error.
    pub async fn watermarks(&self, topic: &str) -> Result<HashMap<i32, Watermarks>, KafkaError> {
        let (reader, topic) = (self.clone(), topic.to_owned());
        blocking("read the offsets", move || {
            let consumer = reader.consumer()?;
            reader.watermarks_with(&consumer, &topic)
        })
        .await
    }

    /// Whether a partition is consumed past its end. `watermarks` were read before `consumed`: workers go on meanwhile,
    /// and what they consumed since lies past them rightly. So the leaders are asked again before anything is said.
    pub async fn past_end(
        &self,
        topic: &str,
        consumed: &HashMap<i32, i64>,
        watermarks: &HashMap<i32, Watermarks>,
    ) -> Result<Option<PastEnd>, KafkaError> {
        if past_end(consumed, watermarks).is_none() {
            return Ok(None);
        }
        Ok(past_end(consumed, &self.watermarks(topic).await?))
    }

    /// Reads every record from `from` (absent: the low watermark) up to, not including, `to`, and gives each to `each`
    /// as (partition, offset, value). `each` runs on a blocking thread; a `Break` from it stops. Ends only when every
    /// partition of `to` was read, else it is an error.
    pub async fn read<F>(
        &self,
        topic: &str,
        from: HashMap<i32, i64>,
        to: HashMap<i32, i64>,
        each: F,
    ) -> Result<(), KafkaError>
    where
        F: FnMut(i32, i64, &[u8]) -> ControlFlow<()> + Send + 'static,
    {
        let (reader, topic) = (self.clone(), topic.to_owned());
        blocking("read the claims", move || {
            reader.read_blocking(&topic, &from, &to, each)
        })
        .await
    }

    /// Whether a partition holds a record that a consumer is given, at `from` or later and before `to`. Offsets alone do not
    /// tell: a transaction's marker has one, and nobody is given it.
    pub async fn holds_record(&self, topic: &str, partition: i32, from: i64, to: i64) -> Result<bool, KafkaError> {
        let holds = Arc::new(AtomicBool::new(false));
        let found = holds.clone();
        let (from, to) = (HashMap::from([(partition, from)]), HashMap::from([(partition, to)]));
        self.read(topic, from, to, move |_, _, _| {
            found.store(true, Ordering::Release);
            ControlFlow::Break(())
        })
        .await?;
        Ok(holds.load(Ordering::Acquire))
    }

    fn consumer(&self) -> Result<BaseConsumer<Quiet>, KafkaError> {
        self.config
            .create_with_context(Quiet)
            .map_err(|error| KafkaError::Unsuitable(format!("the Kafka reader cannot be made: {error}")))
    }

    /// Leaders move, and for a moment nobody is one: asked again until the limit is over.
    fn watermarks_with(
        &self,
        consumer: &BaseConsumer<Quiet>,
        topic: &str,
    ) -> Result<HashMap<i32, Watermarks>, KafkaError> {
        let began = Instant::now();
        loop {
            match self.ask_watermarks(consumer, topic) {
                Err(error) if began.elapsed() < self.timeout => {
                    tracing::debug!(%error, topic, "offsets are asked again");
                    std::thread::sleep(ASK_AGAIN);
                }
                answer => return answer,
            }
        }
    }

    fn ask_watermarks(
        &self,
        consumer: &BaseConsumer<Quiet>,
        topic: &str,
    ) -> Result<HashMap<i32, Watermarks>, KafkaError> {
        let metadata = consumer
            .fetch_metadata(Some(topic), self.timeout)
            .map_err(|error| KafkaError::unavailable(format!("read the metadata of {topic}"), error))?;
        let partitions = metadata
            .topics()
            .iter()
            .find(|found| found.name() == topic && found.error().is_none())
            .map(|found| found.partitions())
            .unwrap_or_default();
        if partitions.is_empty() {
            return Err(KafkaError::unavailable(
                format!("find the partitions of {topic}"),
                "the topic is missing or has no leader",
            ));
        }
        partitions
            .iter()
            .map(|partition| {
                let id = partition.id();
                let (low, high) = consumer.fetch_watermarks(topic, id, self.timeout).map_err(|error| {
                    KafkaError::unavailable(format!("read the offsets of {topic}, partition {id}"), error)
                })?;
                Ok((id, Watermarks { low, high }))
            })
            .collect()
    }

    fn read_blocking<F>(
        &self,
        topic: &str,
        from: &HashMap<i32, i64>,
        to: &HashMap<i32, i64>,
        mut each: F,
    ) -> Result<(), KafkaError>
    where
        F: FnMut(i32, i64, &[u8]) -> ControlFlow<()>,
    {
        let consumer = self.consumer()?;
        let watermarks = self.watermarks_with(&consumer, topic)?;
        let mut open: HashMap<i32, Span> = HashMap::new();
        let mut assignment = TopicPartitionList::new();
        for (&partition, &end) in to {
            let Some(marks) = watermarks.get(&partition) else {
                return Err(KafkaError::unavailable(
                    format!("read {topic}, partition {partition}"),
                    "the topic no longer has it",
                ));
            };
            let start = start_of(from.get(&partition).copied(), *marks);
            if start < end {
                open.insert(
                    partition,
                    Span {
                        next: start,
                        end,
                        ended_at: None,
                    },
                );
                assignment
                    .add_partition_offset(topic, partition, Offset::Offset(start))
                    .map_err(|error| KafkaError::unavailable(format!("read {topic}, partition {partition}"), error))?;
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        let failed = |error: ClientError| KafkaError::unavailable(format!("read {topic}"), error);
        consumer.assign(&assignment).map_err(failed)?;
        let mut last_progress = Instant::now();
        while !open.is_empty() {
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    last_progress = Instant::now();
                    let (partition, offset) = (message.partition(), message.offset());
                    let Some(span) = open.get_mut(&partition) else { continue };
                    span.next = offset + 1;
                    let (inside, finished) = (offset < span.end, span.next >= span.end);
                    if inside && each(partition, offset, message.payload().unwrap_or_default()).is_break() {
                        return Ok(());
                    }
                    if finished {
                        open.remove(&partition);
                    }
                }
                // Nothing more is there. Offsets before `to` may hold no record; but a leader that was just elected also
                // ends early, until it has heard how far the others are. So it is believed only when it ends there
                // again after it told that it reaches `to`.
                Some(Err(ClientError::PartitionEOF(partition))) => {
                    last_progress = Instant::now();
                    let Some(span) = open.get_mut(&partition) else { continue };
                    let (_, high) = consumer
                        .fetch_watermarks(topic, partition, self.timeout)
                        .map_err(failed)?;
                    if high < span.end {
                        return Err(KafkaError::unavailable(
                            format!("read {topic}, partition {partition}"),
                            format!("it ends at {high}, before {}: the log was cut back", span.end),
                        ));
                    }
                    if span.ended_at.replace(span.next) == Some(span.next) {
                        open.remove(&partition);
                    } else {
                        consumer
                            .seek(topic, partition, Offset::Offset(span.next), self.timeout)
                            .map_err(failed)?;
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, topic, "kafka reader error");
                    if last_progress.elapsed() > self.timeout {
                        return Err(failed(error));
                    }
                }
                None if last_progress.elapsed() > self.timeout => {
                    return Err(KafkaError::unavailable(
                        format!("read {topic}"),
                        format!(
                            "no record within {:?}, partitions {:?} unfinished",
                            self.timeout,
                            open.keys()
                        ),
                    ));
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn past_end(consumed: &HashMap<i32, i64>, watermarks: &HashMap<i32, Watermarks>) -> Option<PastEnd> {
    consumed.iter().find_map(|(&partition, &consumed)| {
        let end = watermarks.get(&partition).map_or(0, |marks| marks.high);
        (consumed > end).then_some(PastEnd {
            partition,
            consumed,
            end,
        })
    })
}

/// Where to begin. What retention has removed cannot be read again: it is said, and reading goes on after it.
fn start_of(from: Option<i64>, marks: Watermarks) -> i64 {
    match from {
        Some(from) if from < marks.low => {
            tracing::error!(
                from,
                low = marks.low,
                "records were removed by retention before they were consumed"
            );
            marks.low
        }
        Some(from) => from,
        None => marks.low,
    }
}

/// What is still to be read of a partition.
struct Span {
    next: i64,
    end: i64,
    /// Where it seemed to end before `end`.
    ended_at: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_past_its_end_only_if_more_is_consumed_than_it_has() {
        let marks = |high| HashMap::from([(0, Watermarks { low: 0, high })]);
        let consumed = HashMap::from([(0, 5)]);
        assert_eq!(past_end(&consumed, &marks(5)), None);
        assert_eq!(past_end(&HashMap::new(), &marks(5)), None);
        for shorter in [marks(4), HashMap::new()] {
            let found = past_end(&consumed, &shorter).expect("past its end");
            assert_eq!((found.partition, found.consumed), (0, 5));
        }
    }

    #[test]
    fn reading_begins_where_it_was_left_and_never_before_what_is_there() {
        let marks = Watermarks { low: 10, high: 20 };
        assert_eq!(start_of(None, marks), 10);
        assert_eq!(start_of(Some(15), marks), 15);
        assert_eq!(start_of(Some(5), marks), 10);
    }
}
