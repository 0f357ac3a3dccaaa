//! Looks whether the topic of claims still reaches what was consumed of it. If it does not, it was made anew or cut back, and
//! what is stored in it below `consumed` would be read by nobody: the doors have to be shut until somebody has decided what
//! becomes of it. Doors find it by their own acknowledgements, too; this one also looks while nobody claims.
//!
//! Beside that it looks whether all partitions of ours deliver what they have (`silence`).

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

/// Why a look ended early.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Postgres.
    #[error("watch the topic of claims: {0}")]
    Database(#[from] DatabaseError),
    /// Kafka.
    #[error("watch the topic of claims: {0}")]
    Kafka(#[from] KafkaError),
}

impl TopicWatch {
    /// Looks again and again until `stop` is cancelled. What cannot be read says nothing.
    pub async fn run(self, stop: CancellationToken) {
        let (mut claims, mut events) = (Silence::default(), Silence::default());
        loop {
            let looks = async {
                let (waiting, watermarks) = self.read(&self.claims).await?;
                self.look(&watermarks).await?;
                self.wake(&self.claims, &claims.look(&waiting, &watermarks), &waiting, &watermarks)
                    .await?;
                let (waiting, watermarks) = self.read(&self.events).await?;
                self.wake(&self.events, &events.look(&waiting, &watermarks), &waiting, &watermarks)
                    .await?;
                Ok::<(), WatchError>(())
            };
            tokio::select! {
                looked = looks => if let Err(error) = looked {
                    tracing::debug!(%error, "the topics could not be looked at");
                },
                () = stop.cancelled() => return,
            }
            if !pause(LOOK.mul_f64(rand::random_range(0.8..1.2)), &stop).await {
                return;
            }
        }
    }

    /// Where our partitions wait, read before the watermarks: what lies between the two is no silence.
    async fn read(&self, assignment: &Assignment) -> Result<(Waiting, HashMap<i32, Watermarks>), KafkaError> {
        let waiting = assignment.waiting();
        let watermarks = self.reader.watermarks(assignment.topic()).await?;
        Ok((waiting, watermarks))
    }

    /// Whether the topic of claims is shortened. `watermarks` were read before.
    async fn look(&self, watermarks: &HashMap<i32, Watermarks>) -> Result<(), WatchError> {
        let topic = self.claims.topic();
        let standing = self.database.topic_standing(topic).await?;
        let found = match standing.shortened {
            Some(_) => None,
            None => self.reader.past_end(topic, &standing.consumed, watermarks).await?,
        };
        let shortened = standing.shortened.is_some() || found.is_some();
        self.metrics.topic_shortened.set(shortened.into());
        if let Some(found) = found
            && self.database.report_shortened(topic, found).await?
        {
            tell_shortened(topic, found);
        }
        Ok(())
    }

    /// Begins anew with a client that does not deliver what is there.
    async fn wake(
        &self,
        assignment: &Assignment,
        silent: &[i32],
        waiting: &Waiting,
        watermarks: &HashMap<i32, Watermarks>,
    ) -> Result<(), WatchError> {
        let (from, to): (HashMap<i32, i64>, HashMap<i32, i64>) = silent
            .iter()
            .filter_map(|partition| {
                let (&(_, next), marks) = (waiting.get(partition)?, watermarks.get(partition)?);
                Some(((*partition, next.max(marks.low)), (*partition, marks.high)))
            })
            .unzip();
        if from.is_empty() || !self.reader.holds_record(assignment.topic(), from, to).await? {
            return Ok(());
        }
        self.metrics.consumers_renewed.inc();
        tracing::warn!(
            topic = assignment.topic(),
            partitions = ?silent,
            "partitions deliver nothing though there is something: their consumer joins anew"
        );
        assignment.renew();
        Ok(())
    }
}
