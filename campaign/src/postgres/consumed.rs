//! Table `consumed`: the next offset of every partition, written with the rows it accounts for.

use std::collections::HashMap;

use sqlx::Row;

use super::{
    database::{Database, DatabaseError, Session, within},
    persist::{Advance, Halt, PersistError},
};

impl Database {
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

/// Compares and sets. The rows are shared by all campaigns: lock them last in a transaction, and in the partitions'
/// order, so that two workers wait for each other shortly and never in a circle.
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
        let stored = stored.get(&advance.partition).copied().unwrap_or(0);
        if stored != advance.from {
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

async fn lock_consumed(
    session: &mut Session,
    topic: &str,
    partitions: &[i32],
) -> Result<HashMap<i32, i64>, sqlx::Error> {
    sqlx::query(
        "SELECT partition, next_offset FROM consumed WHERE topic = $1 AND partition = ANY($2) \
         ORDER BY partition FOR UPDATE",
    )
    .bind(topic)
    .bind(partitions)
    .fetch_all(&mut **session)
    .await?
    .iter()
    .map(|row| Ok((row.try_get("partition")?, row.try_get("next_offset")?)))
    .collect()
}
