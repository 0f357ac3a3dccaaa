//! Step 4 of a rebuild: one transaction that stores the cut and reads everything as of one moment.
//!
//! The moment is the campaign's row lock, not a snapshot of REPEATABLE READ: whoever decides about a slot (persist,
//! abandon, cancel, replay, discard) locks that row first, so nothing of what is read here changes until the end. A
//! REPEATABLE READ transaction takes its snapshot before it waits for the row; under a worker that persists without
//! pause it would fail to serialize every time.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use sqlx::{Row, postgres::PgRow};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    batch::read_batches,
    campaign::{CampaignRow, lock_campaign},
    consumed::read_consumed,
    cut::read_cuts,
    database::{Database, DatabaseError, Session, parsed, within},
};
use crate::{
    identity::{BatchId, CampaignId, Epoch, RequestId},
    mutant::{self, Mutant},
    record::Cuts,
    redis::state::RebuiltEntry,
};

/// How often a snapshot that waits for something else says that it lives. Many times within what the server grants to
/// transactions that sit idle.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// The open transaction. Dropping it stores nothing.
pub struct Snapshot {
    session: Session,
    signs_of_life: Interval,
    campaign: CampaignRow,
    consumed: HashMap<i32, i64>,
    cuts: Cuts,
    /// What is read now, and the last user that was.
    source: Source,
    after: String,
}

/// Where entries come from.
#[derive(Clone, Copy)]
enum Source {
    Coupons,
    Parked,
    Done,
}

/// What `begin_snapshot` came to.
pub enum SnapshotStart {
    /// Open.
    Open(Box<Snapshot>),
    /// Our epoch is no longer the newest, or the campaign is gone: stop.
    Superseded,
}

impl Database {
    /// Locks the campaign row, checks that `epoch` is the newest, stores `cut` (end offset by partition).
    pub async fn begin_snapshot(
        &self,
        topic: &str,
        campaign: CampaignId,
        epoch: Epoch,
        cut: &HashMap<i32, i64>,
    ) -> Result<SnapshotStart, DatabaseError> {
        within("begin the snapshot of a rebuild", async {
            let mut session = self.session().await?;
            session.begin().await?;
            let campaign = match lock_campaign(&mut session, campaign).await? {
                Some((row, false)) if row.epoch == epoch => row,
                _ => {
                    session.rollback().await?;
                    return Ok(SnapshotStart::Superseded);
                }
            };
            let (partitions, offsets): (Vec<i32>, Vec<i64>) =
                cut.iter().filter(|_| !mutant::is(Mutant::RebuildWithoutCut)).unzip();
            sqlx::query(
                "INSERT INTO epoch_cut (campaign_id, epoch, partition, end_offset) \
                 SELECT $1, $2, partition, end_offset FROM unnest($3::int[], $4::bigint[]) AS c(partition, end_offset)",
            )
            .bind(campaign.id.0)
            .bind(epoch.0)
            .bind(partitions)
            .bind(offsets)
            .execute(&mut *session)
            .await?;
            let consumed = read_consumed(&mut session, topic).await?;
            let cuts = read_cuts(&mut session, campaign.id, Epoch(0)).await?;
            let mut signs_of_life = interval(SIGN_OF_LIFE);
            signs_of_life.set_missed_tick_behavior(MissedTickBehavior::Delay);
            Ok(SnapshotStart::Open(Box::new(Snapshot {
                session,
                signs_of_life,
                campaign,
                consumed,
                cuts,
                source: Source::Coupons,
                after: String::new(),
            })))
        })
        .await
    }
}

impl Snapshot {
    /// The campaign as of the snapshot.
    pub fn campaign(&self) -> &CampaignRow {
        &self.campaign
    }

    /// `consumed` as of the snapshot.
    pub fn consumed(&self) -> &HashMap<i32, i64> {
        &self.consumed
    }

    /// Cuts of all epochs, ours included; see [`crate::record::is_stale`].
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// The next entries that rows stand for (holders, canceled ones, parked and not discarded ones), at most `limit`; empty at the end.
    /// Keyset pages by user, so that a million of them never lie in memory.
    pub async fn next_entries(&mut self, limit: usize) -> Result<Vec<RebuiltEntry>, DatabaseError> {
        within("read the holders of a campaign", async {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            loop {
                let (query, next) = match self.source {
                    Source::Coupons => (
                        sqlx::query(
                            "SELECT user_id, id AS request_id, reservation, slot_returned FROM coupon \
                             WHERE campaign_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3",
                        ),
                        Source::Parked,
                    ),
                    // A user with a row has his entry: the row wins.
                    Source::Parked => (
                        sqlx::query(
                            "SELECT user_id, request_id, reservation, false AS slot_returned FROM parked p \
                             WHERE campaign_id = $1 AND user_id > $2 AND discarded_at IS NULL \
                             AND NOT EXISTS (SELECT FROM coupon k WHERE k.campaign_id = $1 AND k.user_id = p.user_id) \
                             ORDER BY user_id LIMIT $3",
                        ),
                        Source::Done,
                    ),
                    Source::Done => return Ok(Vec::new()),
                };
                let rows = query
                    .bind(self.campaign.id.0)
                    .bind(self.after.as_str())
                    .bind(limit)
                    .fetch_all(&mut *self.session)
                    .await?;
                match rows.last() {
                    Some(last) => {
                        self.after = last.try_get("user_id")?;
                        return rows.iter().map(entry).collect();
                    }
                    None => {
                        self.source = next;
                        self.after.clear();
                    }
                }
            }
        })
        .await
    }

    /// Which of these batches are decided.
    pub async fn decided(&mut self, batches: &[BatchId]) -> Result<HashSet<BatchId>, DatabaseError> {
        within("read decided batches", async {
            let decided = read_batches(&mut self.session, self.campaign.id, batches).await?;
            Ok(decided.into_keys().collect())
        })
        .await
    }

    /// Waits for `other`, which may take long, and keeps the session meanwhile. A process that is stopped gives no sign of
    /// life: the server ends its transaction, and the campaign's row is free.
    pub async fn kept_while<T>(&mut self, other: impl Future<Output = T>) -> Result<T, DatabaseError> {
        tokio::pin!(other);
        loop {
            tokio::select! {
                // First, also where `other` is always ready: it may be a trickle that ends no wait by itself.
                biased;
                _ = self.signs_of_life.tick() => {
                    within("keep the snapshot of a rebuild", async {
                        sqlx::query("SELECT 1").execute(&mut *self.session).await
                    })
                    .await?;
                }
                done = &mut other => return Ok(done),
            }
        }
    }

    /// Ends the moment of the rows and begins another one for what follows.
    #[cfg(feature = "mutants")]
    pub async fn begin_another_moment(&mut self, topic: &str) -> Result<(), DatabaseError> {
        within("begin another moment", async {
            // Between the two, whoever waits for the row comes first.
            for step in ["COMMIT", "SELECT pg_sleep(0.2)", "BEGIN"] {
                sqlx::raw_sql(step).execute(&mut *self.session).await?;
            }
            lock_campaign(&mut self.session, self.campaign.id).await?;
            self.consumed = read_consumed(&mut self.session, topic).await?;
            Ok(())
        })
        .await
    }

    /// Commits (the cut is stored for ever).
    pub async fn commit(self) -> Result<(), DatabaseError> {
        within("commit the snapshot of a rebuild", self.session.commit()).await
    }
}

fn entry(row: &PgRow) -> Result<RebuiltEntry, sqlx::Error> {
    let user = parsed(row, "user_id")?;
    let request = RequestId(row.try_get("request_id")?);
    Ok(if row.try_get("slot_returned")? {
        RebuiltEntry::Canceled(user, request)
    } else {
        RebuiltEntry::Holder(user, request, parsed(row, "reservation")?)
    })
}
