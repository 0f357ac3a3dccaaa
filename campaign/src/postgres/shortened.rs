//! Table `shortened_topic`: a topic of claims that ends before what was consumed of it. It was made anew or cut back.
//!
//! Whoever finds it says so here, and everybody goes by the row: a topic that has grown past `consumed` since looks whole
//! again, and the records below `consumed` would be read by nobody. It stays until somebody has accepted what is left.

use std::collections::HashMap;

use sqlx::Row;

use super::{
    consumed::{forget_consumed, read_consumed},
    database::{Database, DatabaseError, Session, within},
};
use crate::kafka::offsets::PastEnd;

/// How far a topic is consumed, and whether that can be relied on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicStanding {
    /// Where it was found to be shortened.
    pub shortened: Option<PastEnd>,
    /// Next offset by partition.
    pub consumed: HashMap<i32, i64>,
}

impl Database {
    /// How a topic stands. The offsets are read after the verdict: those of before a topic was accepted never come with the
    /// verdict of after it.
    pub async fn topic_standing(&self, topic: &str) -> Result<TopicStanding, DatabaseError> {
        within("read how a topic stands", async {
            let mut session = self.session().await?;
            let shortened = read_shortened(&mut session, topic).await?;
            let consumed = read_consumed(&mut session, topic).await?;
            session.finish();
            Ok(TopicStanding { shortened, consumed })
        })
        .await
    }

    /// Where a topic was found to be shortened, if it was.
    pub async fn shortened_topic(&self, topic: &str) -> Result<Option<PastEnd>, DatabaseError> {
        within("read whether a topic was shortened", async {
            let mut session = self.session().await?;
            let shortened = read_shortened(&mut session, topic).await?;
            session.finish();
            Ok(shortened)
        })
        .await
    }

    /// Says that a topic was shortened. True if nobody had said so, or if it was shortened once more since its offsets were
    /// forgotten. A finding of before that says nothing any more: `consumed` has begun again.
    pub async fn report_shortened(&self, topic: &str, found: PastEnd) -> Result<bool, DatabaseError> {
        within("report a shortened topic", async {
            let mut session = self.session().await?;
            let done = sqlx::query(
                "INSERT INTO shortened_topic (topic, partition, consumed, end_offset) SELECT $1, $2, $3, $4 \
                 WHERE EXISTS (SELECT 1 FROM consumed WHERE topic = $1 AND partition = $2 AND next_offset >= $3) \
                 ON CONFLICT (topic) DO UPDATE SET partition = $2, consumed = $3, end_offset = $4, \
                 found_at = statement_timestamp(), read_anew = false WHERE shortened_topic.read_anew",
            )
            .bind(topic)
            .bind(found.partition)
            .bind(found.consumed)
            .bind(found.end)
            .execute(&mut *session)
            .await?;
            session.finish();
            Ok(done.rows_affected() > 0)
        })
        .await
    }

    /// Forgets, once a finding, how far a shortened topic was consumed: what it holds now is read from its beginning, and
    /// what was decided stays decided. False: it was not shortened, and nothing is forgotten.
    pub async fn consume_anew(&self, topic: &str) -> Result<bool, DatabaseError> {
        within("forget the offsets of a shortened topic", async {
            let mut session = self.session().await?;
            session.begin().await?;
            let first = sqlx::query("UPDATE shortened_topic SET read_anew = true WHERE topic = $1 AND NOT read_anew")
                .bind(topic)
                .execute(&mut *session)
                .await?;
            if first.rows_affected() > 0 {
                forget_consumed(&mut session, topic).await?;
            }
            let shortened = read_shortened(&mut session, topic).await?.is_some();
            session.commit().await?;
            Ok(shortened)
        })
        .await
    }

    /// A shortened topic counts as whole again: doors open within their next look.
    pub async fn accept_shortened(&self, topic: &str) -> Result<(), DatabaseError> {
        within("accept a shortened topic", async {
            let mut session = self.session().await?;
            sqlx::query("DELETE FROM shortened_topic WHERE topic = $1")
                .bind(topic)
                .execute(&mut *session)
                .await?;
            session.finish();
            Ok(())
        })
        .await
    }
}

/// As [`Database::shortened_topic`], inside a transaction.
pub(super) async fn read_shortened(session: &mut Session, topic: &str) -> Result<Option<PastEnd>, sqlx::Error> {
    sqlx::query("SELECT partition, consumed, end_offset FROM shortened_topic WHERE topic = $1")
        .bind(topic)
        .fetch_optional(&mut **session)
        .await?
        .map(|row| {
            Ok(PastEnd {
                partition: row.try_get("partition")?,
                consumed: row.try_get("consumed")?,
                end: row.try_get("end_offset")?,
            })
        })
        .transpose()
}
