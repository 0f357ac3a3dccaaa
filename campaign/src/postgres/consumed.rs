//! Table `consumed`: the next offset of every partition, written with the rows it accounts for. Table `consumed_anew`: how
//! often the offsets of a topic were begun anew, so that those of an old log are never taken for those of the next.

use std::collections::HashMap;

use sqlx::{Row, postgres::PgRow};

use super::{
    database::{Database, DatabaseError, Session, within},
    persist::{Advance, Halt, PersistError},
};
use crate::kafka::offsets::PastEnd;

/// The life of the offsets of topic `$1`.
macro_rules! life {
    () => {
        "coalesce((SELECT times FROM consumed_anew WHERE consumed_anew.topic = $1), 0) AS life"
    };
}

/// How often the offsets of a topic were begun anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(pub i64);

/// How far a topic is consumed, and in which life of its offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumption {
    /// Which life.
    pub life: Life,
    /// Next offset by partition; one that was never consumed in this life is not in it.
    pub next: HashMap<i32, i64>,
}

impl Consumption {
    /// Next offset of a partition.
    pub fn next_of(&self, partition: i32) -> i64 {
        self.next.get(&partition).copied().unwrap_or(0)
    }
}

impl Database {
    /// Reads a topic from its beginning, in another life of its offsets: it was found to end before what was consumed of it. Only
    /// for one whose records may be read twice. False: a finding of before it last began anew says nothing any more.
    pub async fn consume_from_beginning(&self, topic: &str, found: PastEnd) -> Result<bool, DatabaseError> {
        within("begin a topic anew", async {
            let mut session = self.session().await?;
            session.begin().await?;
            hold_consumed(&mut session).await?;
            let consumed = read_consumed(&mut session, topic).await?;
            let holds = consumed
                .get(&found.partition)
                .is_some_and(|next| *next >= found.consumed);
            if holds {
                forget_consumed(&mut session, topic).await?;
            }
            session.commit().await?;
            Ok(holds)
        })
        .await
    }

    /// How far a topic is consumed, with the life that the offsets belong to.
    pub async fn consumption(&self, topic: &str) -> Result<Consumption, DatabaseError> {
        within("read how far a topic is consumed", async {
            let mut session = self.session().await?;
            // In one statement: a topic that begins anew in between must not lend its life to the old offsets.
            let rows = sqlx::query(concat!(
                "SELECT ",
                life!(),
                ", partition, next_offset \
                 FROM (VALUES (0)) AS always LEFT JOIN consumed ON consumed.topic = $1",
            ))
            .bind(topic)
            .fetch_all(&mut *session)
            .await?;
            session.finish();
            let mut consumption = Consumption::default();
            for row in &rows {
                consumption.life = Life(row.try_get("life")?);
                if let (Some(partition), Some(next)) = (row.try_get("partition")?, row.try_get("next_offset")?) {
                    consumption.next.insert(partition, next);
                }
            }
            Ok(consumption)
        })
        .await
    }

    /// Next offset by partition; a partition that was never consumed is not in it.
    pub async fn consumed(&self, topic: &str) -> Result<HashMap<i32, i64>, DatabaseError> {
        within("read the consumed offsets", async {
            let mut session = self.session().await?;
            let consumed = read_consumed(&mut session, topic).await?;
            session.finish();
            Ok(consumed)
        })
        .await
    }
}

/// As [`Database::consumed`], inside a transaction.
pub(super) async fn read_consumed(session: &mut Session, topic: &str) -> Result<HashMap<i32, i64>, sqlx::Error> {
    sqlx::query("SELECT partition, next_offset FROM consumed WHERE topic = $1")
        .bind(topic)
        .fetch_all(&mut **session)
        .await?
        .iter()
        .map(|row| Ok((row.try_get("partition")?, row.try_get("next_offset")?)))
        .collect()
}

/// Compares and sets, the life of the topic's offsets with them. The rows are shared by all campaigns: lock them last
/// in a transaction, and in the partitions' order, so that two workers wait for each other shortly and never in a
/// circle.
pub(super) async fn move_consumed(session: &mut Session, topic: &str, advances: &[Advance]) -> Result<(), Halt> {
    if advances.is_empty() {
        return Ok(());
    }
    let mut advances = advances.to_vec();
    advances.sort_unstable_by_key(|advance| advance.partition);
    let partitions: Vec<i32> = advances.iter().map(|advance| advance.partition).collect();
    let mut stored = lock_consumed(session, topic, &partitions).await?;
    if stored.len() < partitions.len() {
        // Never consumed counts as 0. The row is made first, so that there is something to lock.
        sqlx::query(
            "INSERT INTO consumed (topic, partition, next_offset) \
             SELECT $1, partition, 0 FROM unnest($2::int[]) AS p(partition) ORDER BY partition ON CONFLICT DO NOTHING",
        )
        .bind(topic)
        .bind(&partitions)
        .execute(&mut **session)
        .await?;
        stored = lock_consumed(session, topic, &partitions).await?;
    }
    for advance in &advances {
        let (stored, life) = stored.get(&advance.partition).copied().unwrap_or_default();
        if (stored, life) != (advance.from, advance.life) {
            return Err(Halt::Refused(PersistError::Moved {
                partition: advance.partition,
                expected: advance.from,
                stored,
            }));
        }
    }
    sqlx::query(
        "UPDATE consumed SET next_offset = a.next_offset \
         FROM unnest($2::int[], $3::bigint[]) AS a(partition, next_offset) \
         WHERE consumed.topic = $1 AND consumed.partition = a.partition",
    )
    .bind(topic)
    .bind(&partitions)
    .bind(advances.iter().map(|advance| advance.to).collect::<Vec<_>>())
    .execute(&mut **session)
    .await?;
    Ok(())
}

/// Offset and life by partition.
async fn lock_consumed(
    session: &mut Session,
    topic: &str,
    partitions: &[i32],
) -> Result<HashMap<i32, (i64, Life)>, sqlx::Error> {
    // `forget_consumed` locks the table first, so a life that is read with a row's lock is that row's.
    let read = |row: &PgRow| {
        Ok((
            row.try_get("partition")?,
            (row.try_get("next_offset")?, Life(row.try_get("life")?)),
        ))
    };
    sqlx::query(concat!(
        "SELECT partition, next_offset, ",
        life!(),
        " FROM consumed WHERE topic = $1 AND partition = ANY($2) ORDER BY partition FOR UPDATE",
    ))
    .bind(topic)
    .bind(partitions)
    .fetch_all(&mut **session)
    .await?
    .iter()
    .map(read)
    .collect()
}

/// Until the end of the transaction nobody moves an offset. Whoever is in the middle of it is waited for.
async fn hold_consumed(session: &mut Session) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("LOCK TABLE consumed IN EXCLUSIVE MODE")
        .execute(&mut **session)
        .await
        .map(drop)
}

/// Forgets how far a topic was consumed, inside a transaction: it is read from its beginning, in another life.
pub(super) async fn forget_consumed(session: &mut Session, topic: &str) -> Result<(), sqlx::Error> {
    hold_consumed(session).await?;
    for statement in [
        "INSERT INTO consumed_anew (topic, times) VALUES ($1, 1) \
         ON CONFLICT (topic) DO UPDATE SET times = consumed_anew.times + 1",
        "DELETE FROM consumed WHERE topic = $1",
    ] {
        sqlx::query(statement).bind(topic).execute(&mut **session).await?;
    }
    Ok(())
}
