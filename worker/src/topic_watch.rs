//! Looks at both topics again and again, each for itself: one that cannot be read hides nothing of the other.
//!
//! Does the topic of claims still reach what was consumed of it? If it does not, it was made anew or cut back, and what is
//! stored in it below `consumed` would be read by nobody: the doors have to be shut until somebody has decided what becomes
//! of it. Doors find it by their own acknowledgements, too; this one also looks while nobody claims.
//!
//! Does the topic of events? Those that another log holds are read from its beginning: the relay has forgotten what it was told
//! is stored, and the projection drops repeats.
//!
//! Is our consumer in its group (`absence`), and do all partitions of ours deliver what they have (`silence`)?

use std::{collections::HashMap, sync::Arc, time::Duration};

use campaign::{
    kafka::{
        client::KafkaError,
        offsets::{TopicReader, Watermarks},
    },
    postgres::database::{Database, DatabaseError},
    topic_recovery::tell_shortened,
};
use tokio_util::sync::CancellationToken;

use crate::{
    absence::Absence,
    assignment::Assignment,
    backoff::pause,
    metrics::Metrics,
    silence::{Silence, Waiting},
};

/// From one look to the next.
const LOOK: Duration = Duration::from_secs(10);

/// Watches.
pub struct TopicWatch {
    /// Knows what was consumed, and is told.
    pub database: Database,
    /// Asks the leaders.
    pub reader: TopicReader,
    /// Our partitions of the claims' topic.
    pub claims: Arc<Assignment>,
    /// Our partitions of the lifecycle topic.
    pub events: Arc<Assignment>,
    /// Counters.
    pub metrics: Metrics,
}

/// What the looks so far say of a consumer.
#[derive(Default)]
struct Doubts {
    absence: Absence,
    silence: Silence,
}

/// Why a look ended early.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Postgres.
    #[error("watch a topic: {0}")]
    Database(#[from] DatabaseError),
    /// Kafka.
    #[error("watch a topic: {0}")]
    Kafka(#[from] KafkaError),
}

/// Which topic is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    Claims,
    Events,
}

impl Watched {
    /// As `coupon_worker_retries_total` names a look that failed.
    fn kind(self) -> &'static str {
        match self {
            Self::Claims => "watch_claims",
            Self::Events => "watch_events",
        }
    }
}

impl TopicWatch {
    /// Looks again and again until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        tokio::join!(self.watch(Watched::Claims, &stop), self.watch(Watched::Events, &stop));
    }

    async fn watch(&self, watched: Watched, stop: &CancellationToken) {
        let assignment = match watched {
            Watched::Claims => &self.claims,
            Watched::Events => &self.events,
        };
        let mut doubts = Doubts::default();
        let mut failing = false;
        loop {
            let looked = tokio::select! {
                looked = self.look(watched, assignment, &mut doubts) => looked,
                () = stop.cancelled() => return,
            };
            if let Err(error) = &looked {
                self.metrics.retry(watched.kind());
                // Only the change is told: an outage of an hour is one line.
                if !failing {
                    tracing::warn!(%error, topic = assignment.topic(), "a topic cannot be looked at, what was known of it holds");
                }
            }
            failing = looked.is_err();
            if !pause(LOOK.mul_f64(rand::random_range(0.8..1.2)), stop).await {
                return;
            }
        }
    }

    async fn look(&self, watched: Watched, assignment: &Assignment, doubts: &mut Doubts) -> Result<(), WatchError> {
        // Read before the watermarks: what lies between the two is no silence.
        let waiting = assignment.waiting();
        let watermarks = self.reader.watermarks(assignment.topic()).await;
        let judged = match watched {
            Watched::Claims => self.judge_claims(watermarks.as_ref().ok()).await,
            Watched::Events => self.judge_events(watermarks.as_ref().ok()).await,
        };
        let watermarks = watermarks.inspect_err(|_| doubts.absence.brokers_are_away())?;
        if !self.bring_back(assignment, &mut doubts.absence) {
            self.wake(assignment, &mut doubts.silence, &waiting, &watermarks)
                .await?;
        }
        judged
    }

    /// Begins anew with a client that does not come into its group, while the brokers answer another one.
    fn bring_back(&self, assignment: &Assignment, absence: &mut Absence) -> bool {
        let membership = assignment.membership();
        let absent = absence.look(membership);
        if absent && self.begin_anew(assignment) {
            tracing::warn!(
                topic = assignment.topic(),
                ?membership,
                "a consumer stays out of its group though the brokers answer: it joins anew"
            );
        }
        absent
    }

    fn begin_anew(&self, assignment: &Assignment) -> bool {
        let begins = assignment.renew();
        if begins {
            self.metrics.consumers_renewed.inc();
        }
        begins
    }

    /// Whether the topic of claims is shortened. `watermarks` were read before; without them holds what Postgres was told.
    async fn judge_claims(&self, watermarks: Option<&HashMap<i32, Watermarks>>) -> Result<(), WatchError> {
        let topic = self.claims.topic();
        let standing = self.database.topic_standing(topic).await?;
        if standing.shortened.is_some() {
            self.metrics.topic_shortened.set(1);
            return Ok(());
        }
        let Some(watermarks) = watermarks else { return Ok(()) };
        let found = self.reader.past_end(topic, &standing.consumed, watermarks).await?;
        self.metrics.topic_shortened.set(found.is_some().into());
        if let Some(found) = found
            && self.database.report_shortened(topic, found).await?
        {
            tell_shortened(topic, found);
        }
        Ok(())
    }

    /// Reads the lifecycle topic from its beginning if it is no longer the one that was consumed.
    async fn judge_events(&self, watermarks: Option<&HashMap<i32, Watermarks>>) -> Result<(), WatchError> {
        let Some(watermarks) = watermarks else { return Ok(()) };
        let topic = self.events.topic();
        let consumed = self.database.consumed(topic).await?;
        if let Some(found) = self.reader.past_end(topic, &consumed, watermarks).await?
            && self.database.consume_from_beginning(topic, found).await?
        {
            self.metrics.projection_restarts.inc();
            tracing::error!(
                topic,
                partition = found.partition,
                consumed = found.consumed,
                end = found.end,
                "the lifecycle topic was made anew or cut back, its events are projected from its beginning: \
                 `coupon audit` names those that the projection lacks"
            );
            self.events.reconcile().await?;
        }
        Ok(())
    }

    /// Begins anew with a client that does not deliver what another one finds.
    async fn wake(
        &self,
        assignment: &Assignment,
        silence: &mut Silence,
        waiting: &Waiting,
        watermarks: &HashMap<i32, Watermarks>,
    ) -> Result<(), WatchError> {
        let mut with_record = Vec::new();
        for partition in silence.look(waiting, watermarks) {
            let (Some(&(_, next)), Some(marks)) = (waiting.get(&partition), watermarks.get(&partition)) else {
                continue;
            };
            let from = next.max(marks.low);
            if self
                .reader
                .holds_record(assignment.topic(), partition, from, marks.high)
                .await?
            {
                with_record.push(partition);
            }
        }
        if with_record.is_empty() {
            return Ok(());
        }
        silence.renewed(&with_record, waiting);
        if self.begin_anew(assignment) {
            tracing::warn!(
                topic = assignment.topic(),
                partitions = ?with_record,
                "partitions deliver nothing though there is something: their consumer joins anew"
            );
        }
        Ok(())
    }
}
