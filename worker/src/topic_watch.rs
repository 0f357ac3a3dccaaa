//! Looks whether the topic of claims still reaches what was consumed of it. If it does not, it was made anew or cut back, and
//! what is stored in it below `consumed` would be read by nobody: the doors have to be shut until somebody has decided what
//! becomes of it. Doors find it by their own acknowledgements, too; this one also looks while nobody claims.
//!
//! Beside that it looks whether all partitions of ours deliver what they have (`silence`).

use std::{sync::Arc, time::Duration};

use campaign::{
    kafka::{
        client::KafkaError,
        offsets::{PastEnd, TopicReader},
    },
    postgres::database::{Database, DatabaseError},
};
use tokio_util::sync::CancellationToken;

use crate::{assignment::Assignment, backoff::pause, metrics::Metrics, silence::Silence};

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
                self.look().await?;
                self.wake(&self.claims, &mut claims).await?;
                self.wake(&self.events, &mut events).await
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

    /// One look. Answers where the topic is shortened, whoever found it.
    pub async fn look(&self) -> Result<Option<PastEnd>, WatchError> {
        let topic = self.claims.topic();
        let watermarks = self.reader.watermarks(topic).await?;
        let standing = self.database.topic_standing(topic).await?;
        let found = match standing.shortened {
            Some(known) => Some(known),
            None => self.reader.past_end(topic, &standing.consumed, &watermarks).await?,
        };
        self.metrics.topic_shortened.set(found.is_some().into());
        if let Some(found) = found
            && self.database.report_shortened(topic, found).await?
        {
            tracing::error!(
                topic,
                partition = found.partition,
                consumed = found.consumed,
                end = found.end,
                "the topic of claims was made anew or cut back, no claim is taken: restore it, or accept it as it is with `coupon topics accept`"
            );
        }
        Ok(found)
    }

    /// Begins anew with a client that does not deliver what is there.
    async fn wake(&self, assignment: &Assignment, silence: &mut Silence) -> Result<(), WatchError> {
        let waiting = assignment.waiting();
        let watermarks = self.reader.watermarks(assignment.topic()).await?;
        let silent = silence.look(&waiting, &watermarks);
        if !silent.is_empty() {
            self.metrics.consumers_renewed.inc();
            tracing::warn!(
                topic = assignment.topic(),
                partitions = ?silent,
                "partitions deliver nothing though there is something: their consumer joins anew"
            );
            assignment.renew();
        }
        Ok(())
    }
}
