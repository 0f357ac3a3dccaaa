//! Table `campaign`: what was applied, and the numbers that guard it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::database::{Database, DatabaseError, Session, from_micros, micros, optional_timestamp, undecodable, within};
use crate::{
    identity::{CampaignId, Epoch},
    name::CampaignName,
};

/// What a cancel does with the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnCancel {
    /// Somebody else may have it.
    Restock,
    /// It stays taken.
    Retain,
}

impl OnCancel {
    /// The name in the database and in the manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restock => "Restock",
            Self::Retain => "Retain",
        }
    }
}

/// What becomes of a claim that cannot be persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDeadLetter {
    /// Its slot stays taken until somebody replays or discards it.
    Park,
    /// It is rejected and its slot is free.
    Release,
}

impl OnDeadLetter {
    /// The name in the database and in the manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Park => "Park",
            Self::Release => "Release",
        }
    }
}

/// What the owner of a campaign wants; everything that `apply` writes. Times are kept to the microsecond.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignTerms {
    /// Coupons to give.
    pub quantity: i64,
    /// Life of the Redis state after the last reservation and after the close, in ms.
    pub ttl_ms: i64,
    /// The window, if any.
    pub opens_at: Option<Timestamp>,
    /// The window, if any.
    pub closes_at: Option<Timestamp>,
    /// Whether claims are refused for now.
    pub paused: bool,
    /// What a cancel does.
    pub on_cancel: OnCancel,
    /// What a dead letter does.
    pub on_dead_letter: OnDeadLetter,
    /// Goes before the coupon's code, with a dash; may be empty.
    pub code_prefix: String,
    /// How long a coupon is valid from its issue, in ms; `None`: for ever.
    pub valid_for_ms: Option<i64>,
    /// `discount` and `metadata` of the manifest, kept as they came.
    pub details: serde_json::Value,
}

impl CampaignTerms {
    /// What may never change while the campaign has holders: the code's prefix and the discount. Who comes late would hold
    /// another coupon than who came first.
    pub fn promised(&self) -> (&str, &serde_json::Value) {
        (&self.code_prefix, &self.details["discount"])
    }
}

/// A campaign; a live one (neither archived nor retired) where nothing else is said.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignRow {
    /// Its id.
    pub id: CampaignId,
    /// Its name.
    pub name: CampaignName,
    /// What was applied.
    pub terms: CampaignTerms,
    /// Coupons that occupy a slot.
    pub issued: i64,
    /// Dead letters that occupy a slot.
    pub parked: i64,
    /// Newest life of the Redis state; 0: never built.
    pub epoch: Epoch,
    /// Largest fencing token that wrote.
    pub fence: i64,
    /// Grows with every change of the terms.
    pub revision: i64,
}

/// What `set_terms` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermsChange {
    /// Written; the new revision.
    Written(i64),
    /// The revision or epoch is another one, or more is issued and parked than the quantity wants: start anew.
    Refused,
}

/// The columns that [`CampaignRow::read`] wants.
macro_rules! campaign_columns {
    () => {
        concat!(
            "id, namespace, name, quantity, issued, parked, epoch, fence, revision, ttl_ms, ",
            micros!("opens_at"),
            " AS opens_at, ",
            micros!("closes_at"),
            " AS closes_at, paused, on_cancel, on_dead_letter, code_prefix, valid_for_ms, details::text AS details"
        )
    };
}
pub(super) use campaign_columns;

#[derive(Debug, thiserror::Error)]
#[error("unknown policy {0:?}")]
struct UnknownPolicy(String);

impl CampaignRow {
    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let on_cancel = match row.try_get("on_cancel")? {
            "Restock" => OnCancel::Restock,
            "Retain" => OnCancel::Retain,
            other => return Err(undecodable("on_cancel", UnknownPolicy(other.to_owned()))),
        };
        let on_dead_letter = match row.try_get("on_dead_letter")? {
            "Park" => OnDeadLetter::Park,
            "Release" => OnDeadLetter::Release,
            other => return Err(undecodable("on_dead_letter", UnknownPolicy(other.to_owned()))),
        };
        let details: &str = row.try_get("details")?;
        Ok(Self {
            id: CampaignId(row.try_get("id")?),
            name: CampaignName::new(row.try_get("namespace")?, row.try_get("name")?)
                .map_err(|error| undecodable("name", error))?,
            terms: CampaignTerms {
                quantity: row.try_get("quantity")?,
                ttl_ms: row.try_get("ttl_ms")?,
                opens_at: optional_timestamp(row, "opens_at")?,
                closes_at: optional_timestamp(row, "closes_at")?,
                paused: row.try_get("paused")?,
                on_cancel,
                on_dead_letter,
                code_prefix: row.try_get("code_prefix")?,
                valid_for_ms: row.try_get("valid_for_ms")?,
                details: serde_json::from_str(details).map_err(|error| undecodable("details", error))?,
            },
            issued: row.try_get("issued")?,
            parked: row.try_get("parked")?,
            epoch: Epoch(row.try_get("epoch")?),
            fence: row.try_get("fence")?,
            revision: row.try_get("revision")?,
        })
    }

    /// Slots that the database has left for rows.
    pub fn room(&self) -> i64 {
        (self.terms.quantity - self.issued - self.parked).max(0)
    }
}

/// Locks the row of a campaign, live, retired or archived, until the transaction ends; true: archived. Everything that decides
/// about slots begins with this, before any other row: one order of locks, no deadlocks.
pub(super) async fn lock_campaign(
    session: &mut Session,
    id: CampaignId,
) -> Result<Option<(CampaignRow, bool)>, sqlx::Error> {
    let row = sqlx::query(concat!(
        "SELECT ",
        campaign_columns!(),
        ", archived_at IS NOT NULL AS archived FROM campaign WHERE id = $1 FOR UPDATE"
    ))
    .bind(id.0)
    .fetch_optional(&mut **session)
    .await?;
    row.map(|row| Ok((CampaignRow::read(&row)?, row.try_get("archived")?)))
        .transpose()
}

/// Binds `$1` to `$10`.
fn bind_terms<'q>(query: Query<'q, Postgres, PgArguments>, terms: &CampaignTerms) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(terms.quantity)
        .bind(terms.ttl_ms)
        .bind(terms.opens_at.map(|at| at.as_microsecond()))
        .bind(terms.closes_at.map(|at| at.as_microsecond()))
        .bind(terms.paused)
        .bind(terms.on_cancel.as_str())
        .bind(terms.on_dead_letter.as_str())
        .bind(terms.code_prefix.clone())
        .bind(terms.valid_for_ms)
        .bind(terms.details.to_string())
}

impl Database {
    /// The campaign that a statement with [`campaign_columns`] answers.
    pub(super) async fn campaign_row(
        &self,
        what: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Option<CampaignRow>, DatabaseError> {
        Ok(self.campaign_rows(what, query).await?.pop())
    }

    /// The campaigns that a statement with [`campaign_columns`] answers.
    pub(super) async fn campaign_rows(
        &self,
        what: &'static str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<CampaignRow>, DatabaseError> {
        within(what, async {
            let mut session = self.session().await?;
            let rows = query.fetch_all(&mut *session).await?;
            session.finish();
            rows.iter().map(CampaignRow::read).collect()
        })
        .await
    }

    /// The live campaign of that name.
    pub async fn campaign(&self, name: &CampaignName) -> Result<Option<CampaignRow>, DatabaseError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaign WHERE namespace = $1 AND name = $2 AND archived_at IS NULL AND retired_at IS NULL"
        ))
        .bind(name.namespace())
        .bind(name.name());
        self.campaign_row("read a campaign", query).await
    }

    /// All live campaigns (one query).
    pub async fn live_campaigns(&self) -> Result<Vec<CampaignRow>, DatabaseError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaign WHERE archived_at IS NULL AND retired_at IS NULL ORDER BY namespace, name"
        ));
        self.campaign_rows("read the live campaigns", query).await
    }

    /// Inserts the campaign if no live one has the name; answers the row that is there. A retired one comes back, with
    /// its id, its terms and its holders. Two at once: one wins.
    pub async fn create_campaign(
        &self,
        name: &CampaignName,
        terms: &CampaignTerms,
    ) -> Result<CampaignRow, DatabaseError> {
        loop {
            let insert = sqlx::query(concat!(
                "INSERT INTO campaign (quantity, ttl_ms, opens_at, closes_at, paused, on_cancel, on_dead_letter, \
                 code_prefix, valid_for_ms, details, id, namespace, name) \
                 VALUES ($1, $2, ",
                from_micros!("$3"),
                ", ",
                from_micros!("$4"),
                ", $5, $6, $7, $8, $9, $10::jsonb, $11, $12, $13) \
                 ON CONFLICT (namespace, name) WHERE archived_at IS NULL DO NOTHING RETURNING ",
                campaign_columns!()
            ));
            let insert = bind_terms(insert, terms)
                .bind(Uuid::now_v7())
                .bind(name.namespace())
                .bind(name.name());
            let created = self.campaign_row("create a campaign", insert).await?;
            if let Some(row) = created {
                return Ok(row);
            }
            if let Some(row) = self.campaign(name).await? {
                return Ok(row);
            }
            // None: archived between the statements, its name is free again.
            if let Some(row) = self.revive_campaign(name).await? {
                return Ok(row);
            }
        }
    }

    /// Replaces the terms of a campaign if its revision is still `revision`, (where given) its epoch is `epoch`, and issued + parked ≤ quantity.
    pub async fn set_terms(
        &self,
        id: CampaignId,
        terms: &CampaignTerms,
        revision: i64,
        new_revision: i64,
        epoch: Option<Epoch>,
    ) -> Result<TermsChange, DatabaseError> {
        within("change the terms of a campaign", async {
            let mut session = self.session().await?;
            let update = sqlx::query(concat!(
                "UPDATE campaign SET quantity = $1, ttl_ms = $2, opens_at = ",
                from_micros!("$3"),
                ", closes_at = ",
                from_micros!("$4"),
                ", paused = $5, on_cancel = $6, on_dead_letter = $7, code_prefix = $8, valid_for_ms = $9, \
                 details = $10::jsonb, revision = $13 \
                 WHERE id = $11 AND archived_at IS NULL AND retired_at IS NULL AND revision = $12 AND ($14::bigint IS NULL OR epoch = $14) \
                 AND issued + parked <= $1"
            ));
            let done = bind_terms(update, terms)
                .bind(id.0)
                .bind(revision)
                .bind(new_revision)
                .bind(epoch.map(|epoch| epoch.0))
                .execute(&mut *session)
                .await?;
            session.finish();
            Ok(if done.rows_affected() == 1 {
                TermsChange::Written(new_revision)
            } else {
                TermsChange::Refused
            })
        })
        .await
    }

    /// Step 1 of a rebuild: `greatest(epoch + 1, unix seconds)`. Answers the new epoch and whether it is the first one. `None`: gone.
    pub async fn raise_epoch(&self, id: CampaignId) -> Result<Option<RaisedEpoch>, DatabaseError> {
        within("raise the epoch of a campaign", async {
            let mut session = self.session().await?;
            session.begin().await?;
            let old = sqlx::query(
                "SELECT epoch FROM campaign WHERE id = $1 AND archived_at IS NULL AND retired_at IS NULL FOR UPDATE",
            )
            .bind(id.0)
            .fetch_optional(&mut *session)
            .await?;
            let Some(old) = old else {
                session.rollback().await?;
                return Ok(None);
            };
            let new = sqlx::query(
                "UPDATE campaign SET epoch = greatest(epoch + 1, extract(epoch FROM clock_timestamp())::bigint) \
                 WHERE id = $1 RETURNING epoch",
            )
            .bind(id.0)
            .fetch_one(&mut *session)
            .await?;
            session.commit().await?;
            Ok(Some(RaisedEpoch {
                epoch: Epoch(new.try_get(0)?),
                first: old.try_get::<i64, _>(0)? == 0,
            }))
        })
        .await
    }
}

/// A new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaisedEpoch {
    /// Never given before.
    pub epoch: Epoch,
    /// There was no state before: nothing can be on its way.
    pub first: bool,
}
