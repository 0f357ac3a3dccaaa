//! What the door knows of the topic of claims: how far each partition is consumed, and whether the topic was shortened,
//! that is made anew or cut back. What is stored below `consumed` is read by nobody, so no SUCCESS may rest on it.
//!
//! The door has the proof in its hands: a record that was sent after `consumed` was read lies past it in a topic that is
//! whole. Postgres tells the other doors, and keeps it: the topic looks whole again once it has grown past `consumed`.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use campaign::{
    kafka::offsets::PastEnd,
    postgres::{
        database::{Database, DatabaseError},
        shortened::TopicStanding,
    },
    topic_recovery::tell_shortened,
};
use tokio::sync::Notify;

/// A look that takes longer counts as failed.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The topic of claims.
pub struct ClaimsTopic {
    database: Database,
    name: String,
    consumed: ArcSwap<HashMap<i32, i64>>,
    shortened: AtomicBool,
    /// What this door has found and Postgres has not been told yet.
    found: Mutex<Option<PastEnd>>,
    told: Notify,
}

impl ClaimsTopic {
    /// As Postgres knows it now.
    pub async fn load(database: Database, name: String) -> Result<Arc<Self>, DatabaseError> {
        let standing = database.topic_standing(&name).await?;
        let topic = Self {
            database,
            name,
            consumed: ArcSwap::default(),
            shortened: AtomicBool::new(false),
            found: Mutex::new(None),
            told: Notify::new(),
        };
        topic.take(standing, None);
        Ok(Arc::new(topic))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Next offset by partition, as it was at the last look. A record that is sent from now on lies past them.
    pub fn consumed(&self) -> Arc<HashMap<i32, i64>> {
        self.consumed.load_full()
    }

    /// Whether the door is shut because of it.
    pub fn is_shortened(&self) -> bool {
        self.shortened.load(Ordering::Acquire)
    }

    /// An acknowledgement has proven it. The door is shut at once; Postgres is told by [`Self::keep_fresh`].
    pub fn found_shortened(&self, found: PastEnd) {
        let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.shortened.swap(true, Ordering::AcqRel) {
            *known = Some(found);
            tell_shortened(&self.name, found);
            self.told.notify_one();
        }
    }

    /// Tells Postgres what was found here, and looks again every `period`, for ever. Where Postgres cannot be asked, what is
    /// known holds.
    pub async fn keep_fresh(self: Arc<Self>, period: Duration) {
        let mut failing = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = self.told.notified() => {}
            }
            let looked = match tokio::time::timeout(LOOK_LIMIT, self.look()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {LOOK_LIMIT:?}")),
            };
            // Only the change is told: an outage of an hour is one line.
            if let Err(error) = &looked
                && !failing
            {
                tracing::warn!(
                    error,
                    "how the topic of claims stands cannot be read, what was known holds"
                );
            }
            failing = looked.is_err();
        }
    }

    async fn look(&self) -> Result<(), DatabaseError> {
        let found = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = found {
            self.database.report_shortened(&self.name, found).await?;
        }
        let standing = self.database.topic_standing(&self.name).await?;
        self.take(standing, found);
        Ok(())
    }

    /// `reported`: what Postgres was told before it was asked.
    fn take(&self, standing: TopicStanding, reported: Option<PastEnd>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if *found == reported {
            *found = None;
        }
        self.consumed.store(Arc::new(standing.consumed));
        let shortened = standing.shortened.is_some() || found.is_some();
        match (self.shortened.swap(shortened, Ordering::AcqRel), standing.shortened) {
            (false, Some(found)) => tell_shortened(&self.name, found),
            (true, None) if !shortened => tracing::info!("the topic of claims was accepted: claims are reserved again"),
            _ => {}
        }
    }
}
