//! Table `coupon`: reading, using and canceling.

use jiff::Timestamp;
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use super::{
    campaign::{OnCancel, lock_campaign},
    database::{
        Database, DatabaseError, Session, from_micros, micros, optional_timestamp, parsed, timestamp, undecodable,
        within,
    },
};
use crate::{
    event::EventType,
    identity::{CampaignId, RequestId, Reservation, UserId},
    name::CampaignName,
};

/// `coupon.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CouponStatus {
    /// May be used or canceled.
    Issued,
    /// Redeemed.
    Used,
    /// Canceled.
    Canceled,
}

impl CouponStatus {
    /// The name in the database and in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "ISSUED",
            Self::Used => "USED",
            Self::Canceled => "CANCELED",
        }
    }
}

impl std::str::FromStr for CouponStatus {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        match text {
            "ISSUED" => Ok(Self::Issued),
            "USED" => Ok(Self::Used),
            "CANCELED" => Ok(Self::Canceled),
            other => Err(UnknownStatus(other.to_owned())),
        }
    }
}

/// A status from another release.
#[derive(Debug, thiserror::Error)]
#[error("unknown coupon status {0:?}")]
pub struct UnknownStatus(String);

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coupon {
    /// The request's id.
    pub id: RequestId,
    /// Its campaign.
    pub campaign: CampaignId,
    /// Its campaign's name.
    pub campaign_name: CampaignName,
    /// Whose.
    pub user: UserId,
    /// What is shown at the till.
    pub code: String,
    /// The attempt that won it.
    pub reservation: Reservation,
    /// Where it stands.
    pub status: CouponStatus,
    /// When the row was written.
    pub issued_at: Timestamp,
    /// When it was used, if it was.
    pub used_at: Option<Timestamp>,
    /// When it was canceled, if it was.
    pub canceled_at: Option<Timestamp>,
    /// Past this it can be neither used nor canceled.
    pub valid_until: Option<Timestamp>,
    /// `discount` and `metadata` of its campaign, as they are now.
    pub details: serde_json::Value,
}

/// How to find one.
#[derive(Clone, Debug)]
pub enum CouponKey {
    /// By id.
    Id(RequestId),
    /// By code.
    Code(String),
}

/// What use or cancel came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redemption {
    /// Done, with its event; the coupon as it is now.
    Done(Coupon),
    /// It was used or canceled before; the coupon as it is.
    WrongStatus(Coupon),
    /// Past `valid_until`.
    Expired(Coupon),
    /// No such coupon.
    NotFound,
}

/// The columns that [`Coupon::read`] wants, of `coupon k` and `campaign c`.
macro_rules! coupon_columns {
    () => {
        concat!(
            "k.id, k.campaign_id, c.namespace, c.name, k.user_id, k.code, k.reservation, k.status, ",
            micros!("k.issued_at"),
            " AS issued_at, ",
            micros!("k.used_at"),
            " AS used_at, ",
            micros!("k.canceled_at"),
            " AS canceled_at, ",
            micros!("k.valid_until"),
            " AS valid_until, c.details::text AS details"
        )
    };
}

/// Uses the coupon that the condition finds, with its event, in one statement.
macro_rules! use_coupon {
    ($condition:literal) => {
        concat!(
            "WITH k AS ( \
                 UPDATE coupon SET status = 'USED', used_at = statement_timestamp() WHERE ",
            $condition,
            " AND status = 'ISSUED' AND (valid_until IS NULL OR valid_until > statement_timestamp()) RETURNING * \
             ), event AS ( \
                 INSERT INTO outbox (type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
                 SELECT $2, k.id, k.campaign_id, c.namespace || '/' || c.name, k.user_id, k.used_at \
                 FROM k JOIN campaign c ON c.id = k.campaign_id \
             ) \
             SELECT ",
            coupon_columns!(),
            " FROM k JOIN campaign c ON c.id = k.campaign_id"
        )
    };
}

impl Coupon {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: RequestId(row.try_get("id")?),
            campaign: CampaignId(row.try_get("campaign_id")?),
            campaign_name: CampaignName::new(row.try_get("namespace")?, row.try_get("name")?)
                .map_err(|error| undecodable("name", error))?,
            user: parsed(row, "user_id")?,
            code: row.try_get("code")?,
            reservation: parsed(row, "reservation")?,
            status: parsed(row, "status")?,
            issued_at: timestamp(row, "issued_at")?,
            used_at: optional_timestamp(row, "used_at")?,
            canceled_at: optional_timestamp(row, "canceled_at")?,
            valid_until: optional_timestamp(row, "valid_until")?,
            details: serde_json::from_str(row.try_get("details")?).map_err(|error| undecodable("details", error))?,
        })
    }
}

impl Database {
    /// By id.
    pub async fn coupon(&self, id: RequestId) -> Result<Option<Coupon>, DatabaseError> {
        within("read a coupon", async {
            let mut session = self.session().await?;
            let coupon = find(&mut session, &CouponKey::Id(id)).await?;
            session.finish();
            Ok(coupon)
        })
        .await
    }

    /// A user's coupons, newest first, after the cursor `(issued_at in µs, id)`, at most `limit`.
    pub async fn coupons_of(
        &self,
        user: &UserId,
        after: Option<(i64, Uuid)>,
        limit: i64,
    ) -> Result<Vec<Coupon>, DatabaseError> {
        within("read a user's coupons", async {
            let mut session = self.session().await?;
            let rows = sqlx::query(concat!(
                "SELECT ",
                coupon_columns!(),
                " FROM coupon k JOIN campaign c ON c.id = k.campaign_id \
                 WHERE k.user_id = $1 AND ($2::bigint IS NULL OR (k.issued_at, k.id) < (",
                from_micros!("$2"),
                ", $3)) ORDER BY k.issued_at DESC, k.id DESC LIMIT $4"
            ))
            .bind(user.as_str())
            .bind(after.map(|(issued_at, _)| issued_at))
            .bind(after.map(|(_, id)| id))
            .bind(limit)
            .fetch_all(&mut *session)
            .await?;
            session.finish();
            rows.iter().map(Coupon::read).collect()
        })
        .await
    }

    /// `ISSUED → USED`, once, with its event in the same transaction. Locks the coupon's row only: uses never wait for
    /// the workers.
    pub async fn use_coupon(&self, key: &CouponKey) -> Result<Redemption, DatabaseError> {
        within("use a coupon", async {
            let mut session = self.session().await?;
            let redemption = loop {
                let update = match key {
                    CouponKey::Id(id) => sqlx::query(use_coupon!("id = $1")).bind(id.0),
                    CouponKey::Code(code) => sqlx::query(use_coupon!("code = $1")).bind(code),
                };
                let used = update
                    .bind(EventType::Used.as_str())
                    .fetch_optional(&mut *session)
                    .await?;
                if let Some(row) = used {
                    break Redemption::Done(Coupon::read(&row)?);
                }
                // None: it came to be between the two statements.
                if let Some(refusal) = refusal(&mut session, key).await? {
                    break refusal;
                }
            };
            session.finish();
            Ok(redemption)
        })
        .await
    }

    /// `ISSUED → CANCELED`, once, with its event; `Restock` lowers `issued` in the same transaction.
    pub async fn cancel_coupon(&self, id: RequestId) -> Result<Redemption, DatabaseError> {
        within("cancel a coupon", async {
            let mut session = self.session().await?;
            session.begin().await?;
            let campaign = sqlx::query("SELECT campaign_id FROM coupon WHERE id = $1")
                .bind(id.0)
                .fetch_optional(&mut *session)
                .await?;
            // The campaign before the coupon, as in all transactions that decide about slots.
            let locked = match campaign {
                Some(row) => lock_campaign(&mut session, CampaignId(row.try_get(0)?)).await?,
                None => None,
            };
            let Some((campaign, _)) = locked else {
                session.rollback().await?;
                return Ok(Redemption::NotFound);
            };
            let restock = campaign.terms.on_cancel == OnCancel::Restock;
            let canceled = sqlx::query(concat!(
                "WITH k AS ( \
                     UPDATE coupon SET status = 'CANCELED', canceled_at = statement_timestamp(), slot_returned = $2 \
                     WHERE id = $1 AND status = 'ISSUED' \
                     AND (valid_until IS NULL OR valid_until > statement_timestamp()) RETURNING * \
                 ), event AS ( \
                     INSERT INTO outbox (type, coupon_id, campaign_id, campaign, user_id, occurred_at, restock) \
                     SELECT $3, k.id, k.campaign_id, $4, k.user_id, k.canceled_at, $2 FROM k \
                 ) \
                 SELECT ",
                coupon_columns!(),
                " FROM k JOIN campaign c ON c.id = k.campaign_id"
            ))
            .bind(id.0)
            .bind(restock)
            .bind(EventType::Canceled.as_str())
            .bind(campaign.name.to_string())
            .fetch_optional(&mut *session)
            .await?;
            let Some(row) = canceled else {
                let refusal = refusal(&mut session, &CouponKey::Id(id)).await?;
                session.rollback().await?;
                return refusal.ok_or(sqlx::Error::RowNotFound);
            };
            if restock {
                sqlx::query("UPDATE campaign SET issued = issued - 1 WHERE id = $1")
                    .bind(campaign.id.0)
                    .execute(&mut *session)
                    .await?;
            }
            session.commit().await?;
            Ok(Redemption::Done(Coupon::read(&row)?))
        })
        .await
    }
}

async fn find(session: &mut Session, key: &CouponKey) -> Result<Option<Coupon>, sqlx::Error> {
    let query = match key {
        CouponKey::Id(id) => sqlx::query(concat!(
            "SELECT ",
            coupon_columns!(),
            " FROM coupon k JOIN campaign c ON c.id = k.campaign_id WHERE k.id = $1"
        ))
        .bind(id.0),
        CouponKey::Code(code) => sqlx::query(concat!(
            "SELECT ",
            coupon_columns!(),
            " FROM coupon k JOIN campaign c ON c.id = k.campaign_id WHERE k.code = $1"
        ))
        .bind(code),
    };
    query
        .fetch_optional(&mut **session)
        .await?
        .as_ref()
        .map(Coupon::read)
        .transpose()
}

/// Why a coupon could not be used or canceled. A used or canceled one says so, also past its validity.
async fn refusal(session: &mut Session, key: &CouponKey) -> Result<Option<Redemption>, sqlx::Error> {
    let Some(coupon) = find(session, key).await? else {
        return Ok(Some(Redemption::NotFound));
    };
    if coupon.status != CouponStatus::Issued {
        return Ok(Some(Redemption::WrongStatus(coupon)));
    }
    let now = sqlx::query(concat!("SELECT ", micros!("statement_timestamp()"), " AS now"))
        .fetch_one(&mut **session)
        .await?;
    let now = timestamp(&now, "now")?;
    let expired = coupon.valid_until.is_some_and(|until| until <= now);
    Ok(expired.then_some(Redemption::Expired(coupon)))
}
