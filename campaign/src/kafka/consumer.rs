//! A member of a consumer group that starts every partition where Postgres says, not where Kafka does.
//!
//! A thread of its own polls the client: callbacks of the client run in there and nothing of it blocks the runtime. A
//! partition that was assigned is held back, and what the client has fetched for it meanwhile is dropped, until
//! [`GroupConsumer::start`] names the offset.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use rdkafka::{
    ClientConfig, ClientContext, Message, Offset, Statistics, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance},
    error::KafkaError as ClientError,
    message::BorrowedMessage,
};
use tokio::sync::{mpsc, oneshot};

use super::client::{KafkaError, base_config, is_stranded};
use crate::settings::KafkaSettings;

const POLL: Duration = Duration::from_millis(20);
const SEEK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long leaving the group may take.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// Pause before another client is tried.
const MAKE_AGAIN: Duration = Duration::from_secs(1);
/// Events between the poll thread and its reader.
const CHANNEL: usize = 1024;

/// What happens to a member.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// These partitions are ours now; each is held back until `start` tells where to begin.
    Assigned(Vec<i32>),
    /// These are no longer ours: forget what is in memory.
    Revoked(Vec<i32>),
    /// A `start` has taken effect: records of this partition that come after this are at or after `offset`; those that
    /// came before it were read before the start.
    Started {
        /// Which.
        partition: i32,
        /// Where it was told to begin.
        offset: i64,
    },
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

/// What the client of a member says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    /// It looks for its group, or gives back what it had: for a moment at every rebalance.
    #[default]
    Out,
    /// It has asked its group for its share, and others are waited for: as long as they may take between two polls. Or it
    /// waits for its reader.
    Waiting,
    /// In its group, also where no partition is left for it.
    In,
    /// It knows no broker any more: [`GroupConsumer::renew`] it.
    Stranded,
}

impl Membership {
    fn of(statistics: &Statistics) -> Self {
        if is_stranded(statistics) {
            return Self::Stranded;
        }
        let with_coordinator = statistics.cgrp.as_ref().filter(|group| group.state == "up");
        match with_coordinator.map(|group| group.join_state.as_str()) {
            Some("steady") => Self::In,
            Some("wait-join" | "wait-sync") => Self::Waiting,
            _ => Self::Out,
        }
    }
}

/// Where a partition of ours stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// Nobody has said where to begin.
    Held,
    /// To be moved to this offset.
    Seeking(i64),
    /// Records before this offset are not delivered.
    Running(i64),
}

#[derive(Default)]
struct Shared {
    stands: Mutex<HashMap<i32, Stand>>,
    paused: Mutex<std::collections::HashSet<i32>>,
    leaving: AtomicBool,
    renewing: AtomicBool,
    membership: Mutex<Membership>,
    /// The client, while there is one.
    client: Mutex<Weak<BaseConsumer<Context>>>,
}

impl Shared {
    fn stands(&self) -> MutexGuard<'_, HashMap<i32, Stand>> {
        self.stands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> MutexGuard<'_, Weak<BaseConsumer<Context>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn paused(&self) -> MutexGuard<'_, std::collections::HashSet<i32>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Context {
    shared: Arc<Shared>,
    events: mpsc::Sender<ConsumerEvent>,
}

impl Context {
    /// Called by the poll thread, which may wait. Whoever drops a client that leaves calls it too, on any thread, and
    /// nobody listens then.
    fn tell(&self, event: ConsumerEvent) {
        if !self.shared.leaving.load(Ordering::Relaxed) {
            let _ = self.events.blocking_send(event);
        }
    }
}

impl ClientContext for Context {
    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!(%error, reason, "kafka consumer error");
    }

    fn stats(&self, statistics: Statistics) {
        *self.shared.membership() = Membership::of(&statistics);
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let partitions = partitions(list);
            let mut stands = self.shared.stands();
            for partition in &partitions {
                stands.remove(partition);
            }
            drop(stands);
            let mut paused = self.shared.paused();
            for partition in &partitions {
                paused.remove(partition);
            }
            drop(paused);
            self.tell(ConsumerEvent::Revoked(partitions));
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            if let Err(error) = consumer.pause(list) {
                tracing::warn!(%error, "kafka consumer could not hold its new partitions back");
            }
            let partitions = partitions(list);
            self.shared
                .stands()
                .extend(partitions.iter().map(|&partition| (partition, Stand::Held)));
            self.tell(ConsumerEvent::Assigned(partitions));
        }
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(|element| element.partition()).collect()
}

/// A member of a group on one topic. Dropping it leaves the group.
///
/// The client belongs to its thread. Whoever drops a client waits until it has left the group, and without a broker that
/// can take for ever: no thread of the runtime must do it.
pub struct GroupConsumer {
    shared: Arc<Shared>,
    topic: String,
    /// Only to look at: the receiver ends with the poll thread.
    events: mpsc::WeakSender<ConsumerEvent>,
    left: oneshot::Receiver<()>,
}

impl GroupConsumer {
    /// Joins. Events arrive in order through the receiver; a full channel holds the poll back (bounded).
    pub fn join(
        settings: &KafkaSettings,
        group: &str,
        topic: &str,
        session_timeout: Duration,
    ) -> Result<(Self, mpsc::Receiver<ConsumerEvent>), KafkaError> {
        let mut config = base_config(settings)?;
        config
            .set("group.id", group)
            .set("session.timeout.ms", session_timeout.as_millis().to_string())
            .set(
                "heartbeat.interval.ms",
                (session_timeout.as_millis() / 4).max(1).to_string(),
            )
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("partition.assignment.strategy", "range")
            .set("fetch.wait.max.ms", "50")
            .set("queued.max.messages.kbytes", "16384")
            // Tells how it stands with its group.
            .set("statistics.interval.ms", "1000");
        let (events, receiver) = mpsc::channel(CHANNEL);
        let maker = ClientMaker {
            config,
            topic: topic.to_owned(),
            shared: Arc::new(Shared::default()),
            events,
        };
        let consumer = maker.make()?;
        let (leaving, left) = oneshot::channel();
        let member = Self {
            shared: maker.shared.clone(),
            topic: topic.to_owned(),
            events: maker.events.downgrade(),
            left,
        };
        std::thread::Builder::new()
            .name(format!("kafka-{group}"))
            .spawn(move || {
                maker.poll_until_left(consumer);
                drop(maker);
                let _ = leaving.send(());
            })
            .map_err(|error| KafkaError::Unsuitable(format!("no thread for a Kafka consumer: {error}")))?;
        Ok((member, receiver))
    }

    /// Begins or moves a partition: the next record delivered is the one at `offset` (or the first after it). Records
    /// of before may still be in the channel: the caller drops what comes before [`ConsumerEvent::Started`].
    pub fn start(&self, partition: i32, offset: i64) {
        if let Some(stand) = self.shared.stands().get_mut(&partition) {
            *stand = Stand::Seeking(offset);
        }
    }

    /// Holds a partition back (its window is full).
    pub fn pause(&self, partition: i32) {
        self.shared.paused().insert(partition);
        self.with_client("pause", partition, |client| client.pause(&self.one(partition)));
    }

    /// Lets it go on.
    pub fn resume(&self, partition: i32) {
        self.shared.paused().remove(&partition);
        // A partition that waits for its start is let go by the poll thread.
        let running = matches!(self.shared.stands().get(&partition), Some(Stand::Running(_)));
        if running {
            self.with_client("resume", partition, |client| client.resume(&self.one(partition)));
        }
    }

    /// Where the next record of each started partition is awaited from the client; what lies before that is in the channel, or
    /// was. `None`: the channel is full, so nothing can come, whatever there is.
    pub fn handed_over(&self) -> Option<HashMap<i32, i64>> {
        self.has_room().then(|| next_offsets(&self.shared.stands()))
    }

    /// Without its thread there is none either.
    fn has_room(&self) -> bool {
        self.events.upgrade().is_some_and(|events| events.capacity() > 0)
    }

    /// How it stands with its group, as its client said within the last seconds.
    pub fn membership(&self) -> Membership {
        // With a full channel the client is not heard: what it said last is old.
        if self.has_room() {
            *self.shared.membership()
        } else {
            Membership::Waiting
        }
    }

    /// Joins the group with a new client, as a process does that is started again: for one that stays out of its group, or
    /// delivers nothing though there is something. All partitions are revoked, and assigned again. False: it is at that
    /// already; leaving takes the old client up to its session's time where its coordinator is not there.
    pub fn renew(&self) -> bool {
        !self.shared.renewing.swap(true, Ordering::Relaxed)
    }

    /// Commits offsets to Kafka, only so that lag can be seen.
    pub fn show_progress(&self, partition: i32, next_offset: i64) {
        self.with_client("show its progress", partition, |client| {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&self.topic, partition, Offset::Offset(next_offset))?;
            client.commit(&list, CommitMode::Async)
        });
    }

    /// A partition that is no longer ours answers with an error, which means nothing: it was revoked meanwhile.
    fn with_client<F>(&self, what: &'static str, partition: i32, call: F)
    where
        F: FnOnce(&BaseConsumer<Context>) -> Result<(), ClientError>,
    {
        let client = self.shared.client().upgrade();
        if let Some(client) = client
            && let Err(error) = call(&client)
        {
            tracing::debug!(%error, partition, what, "kafka consumer could not do as told");
        }
    }

    /// Leaves the group. The receiver ends; what is still in it may be dropped. Without a broker it is given up after
    /// `LEAVE_LIMIT`: the session then ends by itself.
    pub async fn leave(mut self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        if tokio::time::timeout(LEAVE_LIMIT, &mut self.left).await.is_err() {
            tracing::warn!(topic = self.topic, "kafka consumer could not leave its group in time");
        }
    }

    fn one(&self, partition: i32) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.topic, partition);
        list
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
    }
}

/// Makes the clients of one member, one after the other.
struct ClientMaker {
    config: ClientConfig,
    topic: String,
    shared: Arc<Shared>,
    events: mpsc::Sender<ConsumerEvent>,
}

impl ClientMaker {
    /// A client that joins the group.
    fn make(&self) -> Result<Arc<BaseConsumer<Context>>, KafkaError> {
        let context = Context {
            shared: self.shared.clone(),
            events: self.events.clone(),
        };
        let unsuitable = |error| {
            let topic = &self.topic;
            KafkaError::Unsuitable(format!("the Kafka consumer of {topic} cannot be made: {error}"))
        };
        let consumer: BaseConsumer<Context> = self.config.create_with_context(context).map_err(unsuitable)?;
        consumer.subscribe(&[&self.topic]).map_err(unsuitable)?;
        let consumer = Arc::new(consumer);
        *self.shared.membership() = Membership::default();
        *self.shared.client() = Arc::downgrade(&consumer);
        Ok(consumer)
    }

    fn poll_until_left(&self, first: Arc<BaseConsumer<Context>>) {
        let (shared, events) = (&self.shared, &self.events);
        let mut consumer = Some(first);
        while let Some(client) = consumer.take() {
            shared.renewing.store(false, Ordering::Relaxed);
            poll(&client, shared, &self.topic, events);
            client.unsubscribe();
            // The last poll lets the client leave the group at once, so that others need not wait for the session's end.
            let _ = client.poll(POLL);
            if shared.leaving.load(Ordering::Relaxed) || events.is_closed() {
                // The member may be in the middle of a call: it must not become the one who drops the client.
                while !shared.leaving.load(Ordering::Relaxed) {
                    std::thread::sleep(POLL);
                }
                return;
            }
            *shared.client() = Weak::new();
            while Arc::strong_count(&client) > 1 {
                std::thread::sleep(POLL);
            }
            drop(client);
            self.forget_partitions();
            consumer = self.make_again();
        }
    }

    /// What the last client has not said itself before it went.
    fn forget_partitions(&self) {
        let partitions: Vec<i32> = self.shared.stands().drain().map(|(partition, _)| partition).collect();
        self.shared.paused().clear();
        if !partitions.is_empty() {
            let _ = self.events.blocking_send(ConsumerEvent::Revoked(partitions));
        }
    }

    /// It was made before with the same settings: what fails now passes. `None`: the member has left.
    fn make_again(&self) -> Option<Arc<BaseConsumer<Context>>> {
        while !self.shared.leaving.load(Ordering::Relaxed) {
            match self.make() {
                Ok(consumer) => return Some(consumer),
                Err(error) => {
                    tracing::warn!(%error, topic = self.topic, "kafka consumer is made again");
                    std::thread::sleep(MAKE_AGAIN);
                }
            }
        }
        None
    }
}

/// Until the member leaves or wants another client.
fn poll(consumer: &BaseConsumer<Context>, shared: &Shared, topic: &str, events: &mpsc::Sender<ConsumerEvent>) {
    let over = || shared.leaving.load(Ordering::Relaxed) || shared.renewing.load(Ordering::Relaxed);
    while !over() && !events.is_closed() {
        begin_partitions(consumer, shared, topic, events);
        match consumer.poll(POLL) {
            None => {}
            Some(Ok(message)) => {
                let wanted = accept(&mut shared.stands(), message.partition(), message.offset());
                if wanted && events.blocking_send(ConsumerEvent::Record(copy(&message))).is_err() {
                    break;
                }
            }
            Some(Err(error)) => tracing::debug!(%error, topic, "kafka consumer error"),
        }
    }
}

/// Moves the partitions that were told where to begin. A seek can fail while the assignment is young: tried again at
/// the next poll.
fn begin_partitions(
    consumer: &BaseConsumer<Context>,
    shared: &Shared,
    topic: &str,
    events: &mpsc::Sender<ConsumerEvent>,
) {
    let seeking: Vec<(i32, i64)> = shared
        .stands()
        .iter()
        .filter_map(|(&partition, &stand)| match stand {
            Stand::Seeking(offset) => Some((partition, offset)),
            _ => None,
        })
        .collect();
    for (partition, offset) in seeking {
        if let Err(error) = consumer.seek(topic, partition, Offset::Offset(offset), SEEK_TIMEOUT) {
            tracing::debug!(%error, topic, partition, offset, "kafka consumer could not seek yet");
            continue;
        }
        let mut stands = shared.stands();
        // Another start may have come meanwhile: it goes first at the next poll.
        match stands.get_mut(&partition) {
            Some(stand) if *stand == Stand::Seeking(offset) => *stand = Stand::Running(offset),
            _ => continue,
        }
        drop(stands);
        // A reader that has gone is found by the poll loop.
        let _ = events.blocking_send(ConsumerEvent::Started { partition, offset });
        if shared.paused().contains(&partition) {
            continue;
        }
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        if let Err(error) = consumer.resume(&list) {
            tracing::warn!(%error, topic, partition, "kafka consumer could not let a partition go");
        }
    }
}

/// Whether a record is delivered: only of a partition that was started, and each offset once, in order.
fn accept(stands: &mut HashMap<i32, Stand>, partition: i32, offset: i64) -> bool {
    match stands.get_mut(&partition) {
        Some(Stand::Running(next)) if offset >= *next => {
            *next = offset + 1;
            true
        }
        _ => false,
    }
}

fn next_offsets(stands: &HashMap<i32, Stand>) -> HashMap<i32, i64> {
    stands
        .iter()
        .filter_map(|(&partition, &stand)| match stand {
            Stand::Held => None,
            Stand::Seeking(next) | Stand::Running(next) => Some((partition, next)),
        })
        .collect()
}

fn copy(message: &BorrowedMessage<'_>) -> ConsumedRecord {
    ConsumedRecord {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(Bytes::copy_from_slice),
        value: message.payload().map(Bytes::copy_from_slice).unwrap_or_default(),
        appended_at: message.timestamp().to_millis(),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::statistics::ConsumerGroup;

    use super::*;
    use crate::kafka::client::statistics;

    #[test]
    fn a_member_is_in_its_group_when_its_coordinator_is_there_and_nobody_is_waited_for() {
        let told = |sources: &[&str], state: &str, join_state: &str| {
            let group = ConsumerGroup {
                state: state.to_owned(),
                join_state: join_state.to_owned(),
                ..ConsumerGroup::default()
            };
            Membership::of(&Statistics {
                cgrp: Some(group),
                ..statistics(sources)
            })
        };
        let reachable = &["logical", "learned"];
        assert_eq!(told(reachable, "up", "steady"), Membership::In);
        assert_eq!(told(reachable, "up", "wait-join"), Membership::Waiting);
        assert_eq!(told(reachable, "query-coord", "wait-join"), Membership::Out);
        assert_eq!(told(reachable, "up", "init"), Membership::Out);
        assert_eq!(told(reachable, "query-coord", "steady"), Membership::Out);
        assert_eq!(Membership::of(&statistics(reachable)), Membership::Out);
        assert_eq!(told(&["logical"], "query-coord", "init"), Membership::Stranded);
    }

    #[test]
    fn a_record_is_delivered_only_from_where_its_partition_was_started() {
        let mut stands = HashMap::from([(0, Stand::Held), (1, Stand::Seeking(5)), (2, Stand::Running(5))]);
        assert!(!accept(&mut stands, 0, 9));
        assert!(!accept(&mut stands, 1, 9));
        assert!(!accept(&mut stands, 2, 4));
        assert!(accept(&mut stands, 2, 5));
        assert!(!accept(&mut stands, 2, 5));
        assert!(accept(&mut stands, 2, 8));
        assert!(!accept(&mut stands, 3, 0));
    }
}
