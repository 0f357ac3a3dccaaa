//! Table `batch`: whoever writes it first has decided.

use std::collections::{HashMap, HashSet};

use sqlx::Row;

use super::{
    campaign::lock_campaign,
    consumed::read_consumed,
    database::{Database, DatabaseError, Session, parsed, within},
    issue::Claim,
    persist::Reason,
    shortened::read_shortened,
};
use crate::{
    identity::{BatchId, CampaignId, RequestId, Reservation, UserId},
    mutant::{self, Mutant},
};

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// Its record was persisted.
    Stored,
    /// The sweeper found it in no record.
    Abandoned,
    /// Its record came after the cut of a later epoch.
    Stale,
}

impl BatchOutcome {
    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Abandoned => "abandoned",
            Self::Stale => "stale",
        }
    }
}

impl std::str::FromStr for BatchOutcome {
    type Err = UnknownOutcome;

    fn from_str(text: &str) -> Result<Self, UnknownOutcome> {
        match text {
            "stored" => Ok(Self::Stored),
            "abandoned" => Ok(Self::Abandoned),
            "stale" => Ok(Self::Stale),
            other => Err(UnknownOutcome(other.to_owned())),
        }
    }
}

/// An outcome from another release.
#[derive(Debug, thiserror::Error)]
#[error("unknown outcome of a batch {0:?}")]
pub struct UnknownOutcome(String);

/// What `abandon` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandon {
    /// Written (or it was abandoned before).
    Abandoned,
    /// Somebody else decided otherwise: read again.
    Decided(BatchOutcome),
    /// `consumed` is behind what the sweeper saw, as after a restore: start anew.
    ConsumedBehind,
    /// The topic was shortened: what it holds below `consumed` may be this batch.
    TopicShortened,
}

impl Database {
    /// The decided ones among these.
    pub async fn decided_batches(
        &self,
        campaign: CampaignId,
        batches: &[BatchId],
    ) -> Result<HashMap<BatchId, BatchOutcome>, DatabaseError> {
        within("read decided batches", async {
            let mut session = self.session().await?;
            let decided = read_batches(&mut session, campaign, batches).await?;
            session.finish();
            Ok(decided)
        })
        .await
    }

    /// Claims of decided batches that have no row, to be released: from `rejection` (the user from there).
    pub async fn rejected_claims(
        &self,
        campaign: CampaignId,
        batches: &[BatchId],
    ) -> Result<Vec<(UserId, Reservation)>, DatabaseError> {
        within("read rejected claims", async {
            let mut session = self.session().await?;
            let rows = sqlx::query(
                "SELECT user_id, reservation FROM rejection WHERE campaign_id = $1 AND batch = ANY($2) \
                 ORDER BY reservation",
            )
            .bind(campaign.0)
            .bind(texts(batches))
            .fetch_all(&mut *session)
            .await?;
            session.finish();
            rows.iter()
                .map(|row| Ok((parsed(row, "user_id")?, parsed(row, "reservation")?)))
                .collect()
        })
        .await
    }

    /// Writes a batch as abandoned with a rejection `NOT_STORED` for each claim: locks the campaign row, and reads `consumed` of `topic` again:
    /// every partition of `seen` must be at least there.
    pub async fn abandon(
        &self,
        topic: &str,
        campaign: CampaignId,
        batch: &BatchId,
        claims: &[(UserId, RequestId, Reservation)],
        seen: &HashMap<i32, i64>,
    ) -> Result<Abandon, DatabaseError> {
        within("abandon a batch", async {
            let mut session = self.session().await?;
            session.begin().await?;
            lock_campaign(&mut session, campaign).await?;
            if read_shortened(&mut session, topic).await?.is_some() {
                session.rollback().await?;
                return Ok(Abandon::TopicShortened);
            }
            let consumed = read_consumed(&mut session, topic).await?;
            let behind = seen
                .iter()
                .any(|(partition, seen)| consumed.get(partition).copied().unwrap_or(0) < *seen);
            if behind {
                session.rollback().await?;
                return Ok(Abandon::ConsumedBehind);
            }
            if mutant::is(Mutant::NoAbandonedRow) {
                session.rollback().await?;
                return Ok(Abandon::Abandoned);
            }
            let written = insert_batches(&mut session, campaign, &[(batch, BatchOutcome::Abandoned)]).await?;
            if written.is_empty() {
                let outcome = read_batches(&mut session, campaign, std::slice::from_ref(batch)).await?;
                session.rollback().await?;
                return match outcome.get(batch) {
                    Some(BatchOutcome::Abandoned) => Ok(Abandon::Abandoned),
                    Some(other) => Ok(Abandon::Decided(*other)),
                    None => Err(sqlx::Error::RowNotFound),
                };
            }
            let rejected: Vec<(Claim<'_>, Reason)> = claims
                .iter()
                .map(|(user, request, reservation)| {
                    let claim = Claim {
                        user,
                        request: *request,
                        reservation: reservation.clone(),
                    };
                    (claim, Reason::NotStored)
                })
                .collect();
            insert_rejections(&mut session, campaign, &rejected).await?;
            session.commit().await?;
            Ok(Abandon::Abandoned)
        })
        .await
    }

    /// The newest rejection of a request.
    pub async fn rejection(&self, request: RequestId, user: &UserId) -> Result<Option<Reason>, DatabaseError> {
        within("read a rejection", async {
            let mut session = self.session().await?;
            let row = sqlx::query(
                "SELECT reason FROM rejection WHERE request_id = $1 AND user_id = $2 ORDER BY decided_at DESC LIMIT 1",
            )
            .bind(request.0)
            .bind(user.as_str())
            .fetch_optional(&mut *session)
            .await?;
            session.finish();
            row.as_ref().map(|row| parsed(row, "reason")).transpose()
        })
        .await
    }
}

/// Writes the batches that nobody has decided; answers those.
pub(super) async fn insert_batches(
    session: &mut Session,
    campaign: CampaignId,
    batches: &[(&BatchId, BatchOutcome)],
) -> Result<HashSet<String>, sqlx::Error> {
    if batches.is_empty() {
        return Ok(HashSet::new());
    }
    // In one order: where a campaign was never known, no row lock keeps two workers apart.
    let mut batches = batches.to_vec();
    batches.sort_unstable_by_key(|(batch, _)| *batch);
    let written = sqlx::query(
        "INSERT INTO batch (campaign_id, batch, outcome, decided_at) \
         SELECT $1, batch, outcome, statement_timestamp() FROM unnest($2::text[], $3::text[]) AS b(batch, outcome) \
         ON CONFLICT DO NOTHING RETURNING batch",
    )
    .bind(campaign.0)
    .bind(batches.iter().map(|(batch, _)| batch.as_str()).collect::<Vec<_>>())
    .bind(batches.iter().map(|(_, outcome)| outcome.as_str()).collect::<Vec<_>>())
    .fetch_all(&mut **session)
    .await?;
    if mutant::is(Mutant::NoBatchKey) {
        return Ok(batches.iter().map(|(batch, _)| batch.to_string()).collect());
    }
    written.iter().map(|row| row.try_get(0)).collect()
}

/// As [`Database::decided_batches`], inside a transaction.
pub(super) async fn read_batches(
    session: &mut Session,
    campaign: CampaignId,
    batches: &[BatchId],
) -> Result<HashMap<BatchId, BatchOutcome>, sqlx::Error> {
    sqlx::query("SELECT batch, outcome FROM batch WHERE campaign_id = $1 AND batch = ANY($2)")
        .bind(campaign.0)
        .bind(texts(batches))
        .fetch_all(&mut **session)
        .await?
        .iter()
        .map(|row| Ok((parsed(row, "batch")?, parsed(row, "outcome")?)))
        .collect()
}

/// Writes why claims got no row. One that is there stays.
pub(super) async fn insert_rejections(
    session: &mut Session,
    campaign: CampaignId,
    rejected: &[(Claim<'_>, Reason)],
) -> Result<(), sqlx::Error> {
    if rejected.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO rejection (campaign_id, reservation, batch, request_id, user_id, reason, decided_at) \
         SELECT $1, reservation, batch, request_id, user_id, reason, statement_timestamp() \
         FROM unnest($2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[]) \
              AS r(reservation, batch, request_id, user_id, reason) \
         ON CONFLICT DO NOTHING",
    )
    .bind(campaign.0)
    .bind(
        rejected
            .iter()
            .map(|(claim, _)| claim.reservation.to_string())
            .collect::<Vec<_>>(),
    )
    .bind(
        rejected
            .iter()
            .map(|(claim, _)| claim.reservation.batch.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(rejected.iter().map(|(claim, _)| claim.request.0).collect::<Vec<_>>())
    .bind(
        rejected
            .iter()
            .map(|(claim, _)| claim.user.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(rejected.iter().map(|(_, reason)| reason.as_str()).collect::<Vec<_>>())
    .execute(&mut **session)
    .await?;
    Ok(())
}

fn texts(batches: &[BatchId]) -> Vec<&str> {
    batches.iter().map(BatchId::as_str).collect()
}
