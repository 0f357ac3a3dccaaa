//! Reads what an audit compares: everything from one snapshot (REPEATABLE READ, read-only), in pages, so that a million
//! rows never lie in memory as rows.

use std::collections::HashMap;

use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{
    batch::BatchOutcome,
    campaign::{CampaignRow, campaign_columns},
    consumed::read_consumed,
    coupon::CouponStatus,
    database::{Database, DatabaseError, Session, micros, parsed, undecodable, within},
};
use crate::{
    event::EventType,
    identity::{BatchId, CampaignId, RequestId, Reservation, UserId},
};

/// The open snapshot. It writes nothing and locks nothing.
pub struct AuditSnapshot {
    session: Session,
}

/// A coupon, as an audit needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedCoupon {
    /// Whose.
    pub user: UserId,
    /// Its id.
    pub request: RequestId,
    /// The attempt that won it.
    pub reservation: Reservation,
    /// Where it stands.
    pub status: CouponStatus,
    /// Whether its cancel gave the slot back.
    pub slot_returned: bool,
}

/// A parked claim, as an audit needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedParked {
    /// Whose.
    pub user: UserId,
    /// Its request.
    pub request: RequestId,
    /// The attempt.
    pub reservation: Reservation,
    /// Discarded, and waiting for its release to be confirmed.
    pub discarded: bool,
}

/// A rejected claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedRejection {
    /// The attempt.
    pub reservation: Reservation,
    /// Its request.
    pub request: RequestId,
    /// As in table `rejection`.
    pub reason: String,
}

/// A row of the projection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedActivity {
    /// Its event.
    pub event: Uuid,
    /// What happened.
    pub event_type: EventType,
    /// To which coupon.
    pub coupon: RequestId,
}

impl Database {
    /// Opens a snapshot.
    pub async fn audit_snapshot(&self) -> Result<AuditSnapshot, DatabaseError> {
        within("open a snapshot for the audit", async {
            let mut session = self.session().await?;
            sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                .execute(&mut *session)
                .await?;
            Ok(AuditSnapshot { session })
        })
        .await
    }
}

impl AuditSnapshot {
    async fn rows<T>(
        &mut self,
        what: &'static str,
        query: Query<'_, Postgres, PgArguments>,
        read: impl Fn(&PgRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, DatabaseError> {
        within(what, async {
            let rows = query.fetch_all(&mut *self.session).await?;
            rows.iter().map(read).collect()
        })
        .await
    }

    /// The campaign as of the snapshot; `None`: it is not live any more.
    pub async fn campaign(&mut self, id: CampaignId) -> Result<Option<CampaignRow>, DatabaseError> {
        within("read a campaign", async {
            let row = sqlx::query(concat!(
                "SELECT ",
                campaign_columns!(),
                " FROM campaign WHERE id = $1 AND archived_at IS NULL AND retired_at IS NULL"
            ))
            .bind(id.0)
            .fetch_optional(&mut *self.session)
            .await?;
            row.as_ref().map(CampaignRow::read).transpose()
        })
        .await
    }

    /// The next coupons in the order of their users, after `(user, id)`; empty at the end.
    pub async fn coupons(
        &mut self,
        campaign: CampaignId,
        after: Option<(&UserId, RequestId)>,
        limit: i64,
    ) -> Result<Vec<AuditedCoupon>, DatabaseError> {
        // A user id is never empty: the first page begins after ''.
        let (user, id) = after.map_or(("", Uuid::nil()), |(user, id)| (user.as_str(), id.0));
        let query = sqlx::query(
            "SELECT id, user_id, reservation, status, slot_returned FROM coupon \
             WHERE campaign_id = $1 AND (user_id, id) > ($2, $3) ORDER BY user_id, id LIMIT $4",
        )
        .bind(campaign.0)
        .bind(user)
        .bind(id)
        .bind(limit);
        self.rows("read the coupons", query, coupon).await
    }

    /// Codes that more than one coupon has, with how many; at most `limit`. Over all campaigns, since a code is shown
    /// without its campaign.
    pub async fn repeated_codes(
        &mut self,
        campaign: CampaignId,
        limit: i64,
    ) -> Result<Vec<(String, i64)>, DatabaseError> {
        let query = sqlx::query(
            "SELECT code, count(*) AS rows FROM coupon \
             WHERE code IN (SELECT code FROM coupon WHERE campaign_id = $1) \
             GROUP BY code HAVING count(*) > 1 ORDER BY code LIMIT $2",
        )
        .bind(campaign.0)
        .bind(limit);
        self.rows("look for repeated codes", query, |row| {
            Ok((row.try_get("code")?, row.try_get("rows")?))
        })
        .await
    }

    /// The next parked claims after a reservation; empty at the end.
    pub async fn parked(
        &mut self,
        campaign: CampaignId,
        after: Option<&Reservation>,
        limit: i64,
    ) -> Result<Vec<AuditedParked>, DatabaseError> {
        let query = sqlx::query(
            "SELECT reservation, request_id, user_id, discarded_at IS NOT NULL AS discarded FROM parked \
             WHERE campaign_id = $1 AND reservation > $2 ORDER BY reservation LIMIT $3",
        )
        .bind(campaign.0)
        .bind(after.map(Reservation::to_string).unwrap_or_default())
        .bind(limit);
        self.rows("read the parked claims", query, |row| {
            Ok(AuditedParked {
                user: parsed(row, "user_id")?,
                request: RequestId(row.try_get("request_id")?),
                reservation: parsed(row, "reservation")?,
                discarded: row.try_get("discarded")?,
            })
        })
        .await
    }

    /// The next decided batches after one; empty at the end.
    pub async fn batches(
        &mut self,
        campaign: CampaignId,
        after: Option<&BatchId>,
        limit: i64,
    ) -> Result<Vec<(BatchId, BatchOutcome)>, DatabaseError> {
        let query = sqlx::query(
            "SELECT batch, outcome FROM batch WHERE campaign_id = $1 AND batch > $2 ORDER BY batch LIMIT $3",
        )
        .bind(campaign.0)
        .bind(after.map_or("", BatchId::as_str))
        .bind(limit);
        self.rows("read the batches", query, batch).await
    }

    /// The next rejected claims after a reservation; empty at the end.
    pub async fn rejections(
        &mut self,
        campaign: CampaignId,
        after: Option<&Reservation>,
        limit: i64,
    ) -> Result<Vec<AuditedRejection>, DatabaseError> {
        let query = sqlx::query(
            "SELECT reservation, request_id, reason FROM rejection \
             WHERE campaign_id = $1 AND reservation > $2 ORDER BY reservation LIMIT $3",
        )
        .bind(campaign.0)
        .bind(after.map(Reservation::to_string).unwrap_or_default())
        .bind(limit);
        self.rows("read the rejections", query, |row| {
            Ok(AuditedRejection {
                reservation: parsed(row, "reservation")?,
                request: RequestId(row.try_get("request_id")?),
                reason: row.try_get("reason")?,
            })
        })
        .await
    }

    /// The next rows of the projection after `(coupon, event)`; empty at the end.
    pub async fn activity(
        &mut self,
        campaign: CampaignId,
        after: Option<(RequestId, Uuid)>,
        limit: i64,
    ) -> Result<Vec<AuditedActivity>, DatabaseError> {
        let (coupon, event) = after.map_or((Uuid::nil(), Uuid::nil()), |(coupon, event)| (coupon.0, event));
        let query = sqlx::query(
            "SELECT event_id, type, coupon_id FROM coupon_activity \
             WHERE campaign_id = $1 AND (coupon_id, event_id) > ($2, $3) ORDER BY coupon_id, event_id LIMIT $4",
        )
        .bind(campaign.0)
        .bind(coupon)
        .bind(event)
        .bind(limit);
        self.rows("read the projection", query, |row| {
            Ok(AuditedActivity {
                event: row.try_get("event_id")?,
                event_type: parsed(row, "type")?,
                coupon: RequestId(row.try_get("coupon_id")?),
            })
        })
        .await
    }

    /// Events of a campaign that wait in the outbox.
    pub async fn waiting_events(&mut self, campaign: CampaignId) -> Result<i64, DatabaseError> {
        within("count the outbox", async {
            sqlx::query("SELECT count(*) FROM outbox WHERE campaign_id = $1")
                .bind(campaign.0)
                .fetch_one(&mut *self.session)
                .await?
                .try_get(0)
        })
        .await
    }

    /// Cancels of a campaign whose slot Redis has not got back yet.
    pub async fn waiting_restocks(&mut self, campaign: CampaignId) -> Result<i64, DatabaseError> {
        within("count the restocks", async {
            sqlx::query("SELECT count(*) FROM outbox WHERE campaign_id = $1 AND restock")
                .bind(campaign.0)
                .fetch_one(&mut *self.session)
                .await?
                .try_get(0)
        })
        .await
    }

    /// Next offset by partition as of the snapshot; a partition that was never consumed is not in it.
    pub async fn consumed(&mut self, topic: &str) -> Result<HashMap<i32, i64>, DatabaseError> {
        within("read the consumed offsets", read_consumed(&mut self.session, topic)).await
    }

    /// Ends the snapshot. Dropping it closes its connection.
    pub async fn close(self) -> Result<(), DatabaseError> {
        within("end the snapshot of the audit", self.session.rollback()).await
    }
}

fn coupon(row: &PgRow) -> Result<AuditedCoupon, sqlx::Error> {
    Ok(AuditedCoupon {
        user: parsed(row, "user_id")?,
        request: RequestId(row.try_get("id")?),
        reservation: parsed(row, "reservation")?,
        status: match row.try_get("status")? {
            "ISSUED" => CouponStatus::Issued,
            "USED" => CouponStatus::Used,
            "CANCELED" => CouponStatus::Canceled,
            other => return Err(undecodable("status", Unreadable(other.to_owned()))),
        },
        slot_returned: row.try_get("slot_returned")?,
    })
}

fn batch(row: &PgRow) -> Result<(BatchId, BatchOutcome), sqlx::Error> {
    let outcome = match row.try_get("outcome")? {
        "stored" => BatchOutcome::Stored,
        "abandoned" => BatchOutcome::Abandoned,
        "stale" => BatchOutcome::Stale,
        other => return Err(undecodable("outcome", Unreadable(other.to_owned()))),
    };
    Ok((parsed(row, "batch")?, outcome))
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not known to this release")]
struct Unreadable(String);
