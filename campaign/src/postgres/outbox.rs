//! Table `outbox`: events that wait to be published. A row is removed once it is published and, for a cancel with
//! `Restock`, once Redis confirmed the restock. Rows are found by being there, not by a position: a late commit is
//! not lost.

use std::{collections::HashSet, time::Duration};

use sqlx::{Row, postgres::PgRow};

use super::database::{Database, DatabaseError, micros, parsed, undecodable, within};
use crate::{
    event::{EventType, LifecycleEvent},
    identity::{CampaignId, Epoch, RequestId},
    name::NameError,
    record::VERSION,
};

/// Which row. An id alone does not tell: Postgres put back to an older copy gives ids a second time, to other events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutboxKey {
    /// The row's id.
    pub id: i64,
    /// The coupon of its event.
    pub coupon: RequestId,
    /// When the event happened, in µs by Postgres' clock.
    pub occurred_at: i64,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its key.
    pub key: OutboxKey,
    /// What to publish.
    pub event: LifecycleEvent,
    /// Whether the slot must be restocked before the row may go.
    pub restock: bool,
}

impl OutboxRow {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let event_type: EventType = parsed(row, "type")?;
        let coupon = RequestId(row.try_get("coupon_id")?);
        let occurred_at: i64 = row.try_get("occurred_at")?;
        Ok(Self {
            key: OutboxKey {
                id: row.try_get("id")?,
                coupon,
                occurred_at,
            },
            event: LifecycleEvent {
                v: VERSION,
                event_id: event_type.event_id(coupon),
                event_type,
                coupon_id: coupon,
                campaign: row
                    .try_get::<String, _>("campaign")?
                    .try_into()
                    .map_err(|error: NameError| undecodable("campaign", error))?,
                campaign_id: CampaignId(row.try_get("campaign_id")?),
                user_id: parsed(row, "user_id")?,
                occurred_at: occurred_at / 1000,
            },
            restock: row.try_get("restock")?,
        })
    }
}

impl Database {
    /// The oldest rows, at most one a coupon, so that a failed publish cannot let a later event of its coupon pass.
    /// Fewer than `limit` does not mean that there are no more.
    pub async fn outbox_next(&self, limit: i64) -> Result<Vec<OutboxRow>, DatabaseError> {
        within("read the outbox", async {
            let mut session = self.session().await?;
            let rows = sqlx::query(concat!(
                "SELECT id, type, coupon_id, campaign_id, campaign, user_id, restock, ",
                micros!("occurred_at"),
                " AS occurred_at FROM outbox \
                 WHERE retry_at IS NULL OR retry_at <= statement_timestamp() ORDER BY id LIMIT $1"
            ))
            .bind(limit)
            .fetch_all(&mut *session)
            .await?;
            session.finish();
            // Ids grow along a coupon's life: each transition waits for the commit of the one before.
            let mut coupons = HashSet::new();
            let mut next = Vec::with_capacity(rows.len());
            for row in &rows {
                let row = OutboxRow::read(row)?;
                if coupons.insert(row.event.coupon_id) {
                    next.push(row);
                }
            }
            Ok(next)
        })
        .await
    }

    /// Removes what is done. A row that has got one of the ids since is left alone.
    pub async fn outbox_done(&self, keys: &[OutboxKey]) -> Result<(), DatabaseError> {
        within("remove published events", async {
            let mut session = self.session().await?;
            sqlx::query(concat!(
                "DELETE FROM outbox USING unnest($1::bigint[], $2::uuid[], $3::bigint[]) AS d(id, coupon_id, occurred_at) \
                 WHERE outbox.id = d.id AND outbox.coupon_id = d.coupon_id AND d.occurred_at = ",
                micros!("outbox.occurred_at")
            ))
            .bind(keys.iter().map(|key| key.id).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.coupon.0).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.occurred_at).collect::<Vec<_>>())
            .execute(&mut *session)
            .await?;
            session.finish();
            Ok(())
        })
        .await
    }

    /// Leaves cancels whose restock is not confirmed yet alone for a while, so that a campaign that is being rebuilt
    /// does not keep the others' events behind it. Nothing of their coupons comes after a cancel; other rows stay due.
    pub async fn outbox_postpone(&self, keys: &[OutboxKey], delay: Duration) -> Result<(), DatabaseError> {
        within("postpone restocks", async {
            let mut session = self.session().await?;
            sqlx::query(
                "UPDATE outbox SET retry_at = statement_timestamp() + $2::bigint * interval '1 millisecond' \
                 WHERE id = ANY($1) AND restock",
            )
            .bind(keys.iter().map(|key| key.id).collect::<Vec<_>>())
            .bind(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX))
            .execute(&mut *session)
            .await?;
            session.finish();
            Ok(())
        })
        .await
    }

    /// The epoch of a campaign now (for restock), `None` if it is not live: then it has no state.
    pub async fn epoch_of(&self, campaign: CampaignId) -> Result<Option<Epoch>, DatabaseError> {
        within("read an epoch", async {
            let mut session = self.session().await?;
            let row =
                sqlx::query("SELECT epoch FROM campaign WHERE id = $1 AND archived_at IS NULL AND retired_at IS NULL")
                    .bind(campaign.0)
                    .fetch_optional(&mut *session)
                    .await?;
            session.finish();
            row.map(|row| Ok(Epoch(row.try_get(0)?))).transpose()
        })
        .await
    }

    /// How many rows wait.
    pub async fn outbox_len(&self) -> Result<i64, DatabaseError> {
        within("count the outbox", async {
            let mut session = self.session().await?;
            let row = sqlx::query("SELECT count(*) FROM outbox")
                .fetch_one(&mut *session)
                .await?;
            session.finish();
            row.try_get(0)
        })
        .await
    }
}
