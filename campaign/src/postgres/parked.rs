//! Table `parked`: dead letters whose slot stays taken.

use jiff::Timestamp;

use std::collections::HashMap;

use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use super::{
    batch::insert_rejections,
    campaign::lock_campaign,
    database::{Database, DatabaseError, Session, micros, parsed, timestamp, undecodable, within},
    issue::{Claim, insert_coupons},
    persist::Reason,
};
use crate::{
    identity::{CampaignId, RequestId, Reservation, UserId},
    name::CampaignName,
};

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedClaim {
    /// The attempt.
    pub reservation: Reservation,
    /// Its request.
    pub request: RequestId,
    /// Its campaign.
    pub campaign: CampaignId,
    /// Its campaign's name.
    pub campaign_name: CampaignName,
    /// Who claimed.
    pub user: UserId,
    /// What the database said.
    pub reason: String,
    /// When it was parked.
    pub parked_at: Timestamp,
    /// Discarded, and waiting for its release to be confirmed.
    pub discarded: bool,
}

/// What replay came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The coupon came to be.
    Issued,
    /// The user has a coupon already; the entry stays: discard it.
    AlreadyIssued,
    /// No such entry (or it is discarded, or its campaign is archived).
    NotFound,
}

macro_rules! select_parked {
    ($condition:literal) => {
        concat!(
            "SELECT p.reservation, p.request_id, p.campaign_id, c.namespace, c.name, p.user_id, p.reason, ",
            micros!("p.parked_at"),
            " AS parked_at, p.discarded_at IS NOT NULL AS discarded \
             FROM parked p JOIN campaign c ON c.id = p.campaign_id WHERE ",
            $condition,
            " ORDER BY p.parked_at, p.reservation"
        )
    };
}

impl ParkedClaim {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            reservation: parsed(row, "reservation")?,
            request: RequestId(row.try_get("request_id")?),
            campaign: CampaignId(row.try_get("campaign_id")?),
            campaign_name: CampaignName::new(row.try_get("namespace")?, row.try_get("name")?)
                .map_err(|error| undecodable("name", error))?,
            user: parsed(row, "user_id")?,
            reason: row.try_get("reason")?,
            parked_at: timestamp(row, "parked_at")?,
            discarded: row.try_get("discarded")?,
        })
    }
}

impl Database {
    /// Entries of a campaign (all campaigns if `None`), oldest first.
    pub async fn parked(&self, campaign: Option<CampaignId>) -> Result<Vec<ParkedClaim>, DatabaseError> {
        within("read parked claims", async {
            let mut session = self.session().await?;
            let rows = sqlx::query(select_parked!("$1::uuid IS NULL OR p.campaign_id = $1"))
                .bind(campaign.map(|id| id.0))
                .fetch_all(&mut *session)
                .await?;
            session.finish();
            rows.iter().map(ParkedClaim::read).collect()
        })
        .await
    }

    /// Makes a parked claim a coupon, with its event: a transaction, not a record, since its batch is decided.
    pub async fn replay_parked(
        &self,
        campaign: CampaignId,
        reservation: &Reservation,
    ) -> Result<Replay, DatabaseError> {
        within("replay a parked claim", async {
            let mut session = self.session().await?;
            session.begin().await?;
            let locked = lock_campaign(&mut session, campaign).await?;
            let entry = sqlx::query(
                "DELETE FROM parked WHERE campaign_id = $1 AND reservation = $2 AND discarded_at IS NULL \
                 RETURNING user_id, request_id",
            )
            .bind(campaign.0)
            .bind(reservation.to_string())
            .fetch_optional(&mut *session)
            .await?;
            let (Some((row, false)), Some(entry)) = (locked, entry) else {
                session.rollback().await?;
                return Ok(Replay::NotFound);
            };
            let user = parsed(&entry, "user_id")?;
            let claim = Claim {
                user: &user,
                request: RequestId(entry.try_get("request_id")?),
                reservation: reservation.clone(),
            };
            let inserted = insert_coupons(&mut session, &row, std::slice::from_ref(&claim)).await?;
            if inserted.is_empty() {
                session.rollback().await?;
                return Ok(Replay::AlreadyIssued);
            }
            sqlx::query("UPDATE campaign SET issued = issued + 1, parked = parked - 1 WHERE id = $1")
                .bind(campaign.0)
                .execute(&mut *session)
                .await?;
            session.commit().await?;
            Ok(Replay::Issued)
        })
        .await
    }

    /// Rejects a parked claim as `DISCARDED`; its entry stays, marked, until `forget_parked`. False: no such entry.
    pub async fn discard_parked(&self, campaign: CampaignId, reservation: &Reservation) -> Result<bool, DatabaseError> {
        within("discard a parked claim", async {
            let mut session = self.session().await?;
            session.begin().await?;
            lock_campaign(&mut session, campaign).await?;
            let entry = sqlx::query(
                "UPDATE parked SET discarded_at = statement_timestamp() \
                 WHERE campaign_id = $1 AND reservation = $2 AND discarded_at IS NULL RETURNING user_id, request_id",
            )
            .bind(campaign.0)
            .bind(reservation.to_string())
            .fetch_optional(&mut *session)
            .await?;
            let Some(entry) = entry else {
                session.rollback().await?;
                return Ok(false);
            };
            let user = parsed(&entry, "user_id")?;
            let claim = Claim {
                user: &user,
                request: RequestId(entry.try_get("request_id")?),
                reservation: reservation.clone(),
            };
            insert_rejections(&mut session, campaign, &[(claim, Reason::Discarded)]).await?;
            sqlx::query("UPDATE campaign SET parked = parked - 1 WHERE id = $1")
                .bind(campaign.0)
                .execute(&mut *session)
                .await?;
            session.commit().await?;
            Ok(true)
        })
        .await
    }

    /// Discarded entries whose release Redis has not confirmed.
    pub async fn discarded(&self) -> Result<Vec<ParkedClaim>, DatabaseError> {
        within("read discarded claims", async {
            let mut session = self.session().await?;
            let rows = sqlx::query(select_parked!("p.discarded_at IS NOT NULL"))
                .fetch_all(&mut *session)
                .await?;
            session.finish();
            rows.iter().map(ParkedClaim::read).collect()
        })
        .await
    }

    /// Removes discarded entries whose release is confirmed.
    pub async fn forget_parked(&self, campaign: CampaignId, reservations: &[Reservation]) -> Result<(), DatabaseError> {
        within("forget discarded claims", async {
            let mut session = self.session().await?;
            sqlx::query(
                "DELETE FROM parked WHERE campaign_id = $1 AND reservation = ANY($2) AND discarded_at IS NOT NULL",
            )
            .bind(campaign.0)
            .bind(reservations.iter().map(Reservation::to_string).collect::<Vec<_>>())
            .execute(&mut *session)
            .await?;
            session.finish();
            Ok(())
        })
        .await
    }
}

/// Parks claims. The caller has the campaign's row locked and counts them there.
pub(super) async fn insert_parked(
    session: &mut Session,
    campaign: CampaignId,
    claims: &[Claim<'_>],
    reasons: &HashMap<Reservation, String>,
) -> Result<(), sqlx::Error> {
    if claims.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO parked (campaign_id, reservation, request_id, user_id, reason, parked_at) \
         SELECT $1, reservation, request_id, user_id, reason, statement_timestamp() \
         FROM unnest($2::text[], $3::uuid[], $4::text[], $5::text[]) AS p(reservation, request_id, user_id, reason)",
    )
    .bind(campaign.0)
    .bind(
        claims
            .iter()
            .map(|claim| claim.reservation.to_string())
            .collect::<Vec<_>>(),
    )
    .bind(claims.iter().map(|claim| claim.request.0).collect::<Vec<_>>())
    .bind(claims.iter().map(|claim| claim.user.as_str()).collect::<Vec<_>>())
    .bind(
        claims
            .iter()
            .map(|claim| reasons.get(&claim.reservation).map_or("", String::as_str))
            .collect::<Vec<_>>(),
    )
    .execute(&mut **session)
    .await?;
    Ok(())
}

/// Which of the claims' users hold a slot through a parked claim, and by which request.
pub(super) async fn parked_users(
    session: &mut Session,
    campaign: CampaignId,
    claims: &[Claim<'_>],
) -> Result<HashMap<String, Uuid>, sqlx::Error> {
    sqlx::query(
        "SELECT user_id, request_id FROM parked \
         WHERE campaign_id = $1 AND user_id = ANY($2) AND discarded_at IS NULL",
    )
    .bind(campaign.0)
    .bind(claims.iter().map(|claim| claim.user.as_str()).collect::<Vec<_>>())
    .fetch_all(&mut **session)
    .await?
    .iter()
    .map(|row| Ok((row.try_get("user_id")?, row.try_get("request_id")?)))
    .collect()
}
