//! The worker's transaction: batches, coupons, events, rejections and offsets, or nothing.

use std::collections::{HashMap, HashSet};

use sqlx::Row;
use uuid::Uuid;

use super::{
    batch::{BatchOutcome, insert_batches, insert_rejections},
    campaign::{CampaignRow, OnDeadLetter, lock_campaign},
    consumed::{Life, move_consumed},
    cut::read_cuts,
    database::{Database, DatabaseError, Session, bounded},
    issue::{Claim, insert_coupons},
    parked::{insert_parked, parked_users},
};
use crate::{
    identity::{BatchId, CampaignId, RequestId, Reservation, UserId},
    mutant::{self, Mutant},
    name::CampaignName,
    record::{ClaimRecord, Cuts, is_stale},
};

/// A record and where it was read.
#[derive(Clone, Debug)]
pub struct LocatedRecord {
    /// Partition of `coupon.issue.requests`.
    pub partition: i32,
    /// Offset in that partition.
    pub offset: i64,
    /// What it says.
    pub record: ClaimRecord,
}

/// Why a stored claim got no row. Names as in table `rejection` and metric `success_revoked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Reserved in a life of the state that ended before the record was stored; nobody was told SUCCESS.
    StaleEpoch,
    /// Another request of this user has the coupon. Cannot happen while the rules hold.
    AlreadyIssued,
    /// No room in the database. Cannot happen while the rules hold.
    OutOfStock,
    /// The campaign is archived or was never known.
    CampaignGone,
    /// Its data was refused and the campaign's policy is `Release`.
    DeadLettered,
    /// The sweeper found the batch in no record.
    NotStored,
    /// A parked dead letter was discarded by hand.
    Discarded,
}

impl Reason {
    /// The name in the database, in answers and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StaleEpoch => "STALE_EPOCH",
            Self::AlreadyIssued => "ALREADY_ISSUED",
            Self::OutOfStock => "OUT_OF_STOCK",
            Self::CampaignGone => "CAMPAIGN_GONE",
            Self::DeadLettered => "DEAD_LETTERED",
            Self::NotStored => "NOT_STORED",
            Self::Discarded => "DISCARDED",
        }
    }
}

impl std::str::FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        match text {
            "STALE_EPOCH" => Ok(Self::StaleEpoch),
            "ALREADY_ISSUED" => Ok(Self::AlreadyIssued),
            "OUT_OF_STOCK" => Ok(Self::OutOfStock),
            "CAMPAIGN_GONE" => Ok(Self::CampaignGone),
            "DEAD_LETTERED" => Ok(Self::DeadLettered),
            "NOT_STORED" => Ok(Self::NotStored),
            "DISCARDED" => Ok(Self::Discarded),
            other => Err(UnknownReason(other.to_owned())),
        }
    }
}

/// A reason from another release.
#[derive(Debug, thiserror::Error)]
#[error("unknown reason {0:?}")]
pub struct UnknownReason(String);

/// Most dead letters of a campaign within a minute: a bad deploy must not revoke a sale.
pub const DEAD_LETTERS_A_MINUTE: i64 = 20;

/// How often a code may collide with another coupon's. Once is a wonder: 65 random bits.
const CODE_ROUNDS: usize = 8;

/// How far a partition's low-water mark moves with this transaction: compare and set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// The partition.
    pub partition: i32,
    /// What `consumed` must hold now (0 where there is no row).
    pub from: i64,
    /// What it holds afterwards.
    pub to: i64,
    /// In which life of the topic's offsets.
    pub life: Life,
}

/// A batch that an earlier transaction of this process has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedBatch {
    /// Whose.
    pub campaign: CampaignId,
    /// Which.
    pub batch: BatchId,
}

/// One transaction's worth.
#[derive(Clone, Debug)]
pub struct PersistRequest<'a> {
    /// The topic that the records and `consumed` belong to.
    pub topic: &'a str,
    /// Whose claims; all records have this id.
    pub campaign: CampaignId,
    /// The fencing token of the lock.
    pub token: i64,
    /// In the order to be decided.
    pub records: &'a [LocatedRecord],
    /// Claims whose data is refused, with what the database said: parked or rejected by the campaign's policy.
    pub dead: &'a HashMap<Reservation, String>,
    /// Low-water marks to move.
    pub advances: &'a [Advance],
    /// What the advances pass and this transaction does not decide.
    pub rests_on: &'a [DecidedBatch],
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persisted {
    /// Batches that this transaction decided.
    pub decided: Vec<BatchId>,
    /// Batches that had been decided before: read their outcome with `decided_batches` and release and settle as stored.
    pub already_decided: HashSet<BatchId>,
    /// Coupons that came to be.
    pub issued: u64,
    /// Claims without a row, to be released.
    pub rejected: Vec<(UserId, RequestId, Reservation, Reason)>,
    /// Dead letters whose slot stays taken.
    pub parked: u64,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// A later holder of the lock has written: this one lost it.
    #[error("the lock's token {token} is older than {fence}, which has written to campaign {campaign}")]
    Fenced {
        /// Whose row.
        campaign: CampaignName,
        /// Ours.
        token: i64,
        /// Theirs.
        fence: i64,
    },
    /// `consumed` holds another offset, or one of another life: somebody else has the partition, Postgres was put back, or the
    /// topic was begun anew. Seek there.
    #[error("partition {partition} is consumed up to {stored}, not {expected} as read, or its topic was begun anew")]
    Moved {
        /// Which.
        partition: i32,
        /// What the caller thought.
        expected: i64,
        /// What is stored.
        stored: i64,
    },
    /// Batches that this process had decided are gone, though `consumed` is what it thought: Postgres was put back to a
    /// copy from before them. Read again from there.
    #[error("{missing} batches that were decided are gone: Postgres was put back to an older copy")]
    PutBack {
        /// How many.
        missing: i64,
    },
    /// More than 20 dead letters a minute: the campaign waits.
    #[error("campaign {campaign} had {count} dead letters within a minute: its claims wait")]
    TooManyDeadLetters {
        /// Whose.
        campaign: CampaignName,
        /// How many with this transaction's.
        count: i64,
    },
    /// Postgres said no; see there whether to try again.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// Why a transaction stops half way.
pub(super) enum Halt {
    /// Postgres failed.
    Sql(sqlx::Error),
    /// It must not write.
    Refused(PersistError),
}

impl From<sqlx::Error> for Halt {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// Runs `work` in one transaction: all of it, or nothing.
macro_rules! in_one_transaction {
    ($database:expr, $what:literal, |$session:ident| $work:expr) => {
        bounded($what, async {
            let failed = |source| PersistError::from(DatabaseError::new($what, source));
            let mut session = $database.session().await.map_err(failed)?;
            session.begin().await.map_err(failed)?;
            let worked: Result<_, Halt> = {
                let $session = &mut session;
                $work
            };
            match worked {
                Ok(done) => session.commit().await.map_err(failed).map(|()| done),
                Err(halt) => {
                    let error = match halt {
                        Halt::Refused(error) => error,
                        Halt::Sql(source) => failed(source),
                    };
                    // What the server refused leaves a good connection behind; any other error may not.
                    if !matches!(error, PersistError::Database(DatabaseError::Unavailable { .. })) {
                        session.rollback().await.map_err(failed)?;
                    }
                    Err(error)
                }
            }
        })
        .await
    };
}
pub(super) use in_one_transaction;

impl Database {
    /// Decides the records; see the worker's table in the design.
    pub async fn persist(&self, request: &PersistRequest<'_>) -> Result<Persisted, PersistError> {
        let apart = PersistRequest {
            advances: &[],
            ..request.clone()
        };
        let request = if mutant::is(Mutant::OffsetsNotInTransaction) {
            self.advance(request.topic, request.advances, request.rests_on).await?;
            &apart
        } else {
            request
        };
        in_one_transaction!(self, "persist claims", |session| decide(session, request).await)
    }

    /// Tries to insert these claims' rows (indexes into `record.claims`) and rolls back: which data is refused?
    pub async fn try_rows(&self, record: &ClaimRecord, claims: &[usize]) -> Result<(), DatabaseError> {
        let tried = in_one_transaction!(self, "try claims", |session| {
            let claims: Vec<Claim<'_>> = claims
                .iter()
                .filter_map(|&index| record.claims.get(index))
                .map(|claim| Claim {
                    user: &claim.user_id,
                    request: claim.request_id,
                    reservation: record.reservation(claim),
                })
                .collect();
            match lock_campaign(session, record.id).await {
                Ok(Some((campaign, _))) => match insert_coupons(session, &campaign, &claims).await {
                    Ok(_) => session.undo().await.map_err(Halt::Sql),
                    Err(error) => Err(Halt::Sql(error)),
                },
                Ok(None) => Ok(()),
                Err(error) => Err(Halt::Sql(error)),
            }
        });
        tried.map_err(|error| match error {
            PersistError::Database(error) => error,
            other => DatabaseError::new("try claims", sqlx::Error::Protocol(other.to_string())),
        })
    }

    /// Moves low-water marks without records (undecodable bytes, records already decided). `rests_on`: what they pass.
    pub async fn advance(
        &self,
        topic: &str,
        advances: &[Advance],
        rests_on: &[DecidedBatch],
    ) -> Result<(), PersistError> {
        in_one_transaction!(self, "move the consumed offsets", |session| {
            match still_decided(session, rests_on).await {
                Ok(()) => move_consumed(session, topic, advances).await,
                Err(halt) => Err(halt),
            }
        })
    }
}

/// The transaction's work. The order of locks is that of all transactions here: the campaign, its rows, `consumed`.
async fn decide(session: &mut Session, request: &PersistRequest<'_>) -> Result<Persisted, Halt> {
    let locked = lock_campaign(session, request.campaign).await?;
    if let Some((campaign, _)) = &locked
        && campaign.fence > request.token
    {
        return Err(Halt::Refused(PersistError::Fenced {
            campaign: campaign.name.clone(),
            token: request.token,
            fence: campaign.fence,
        }));
    }
    let cuts = match &locked {
        Some((campaign, _)) => later_cuts(session, campaign, request.records).await?,
        None => Cuts::new(),
    };

    let mut persisted = Persisted::default();
    let mut stored: Vec<Claim<'_>> = Vec::new();
    let mut rejected: Vec<(Claim<'_>, Reason)> = Vec::new();
    for (located, outcome) in decide_batches(session, request, &cuts, &mut persisted).await? {
        let record = &located.record;
        let claims = record.claims.iter().map(|claim| Claim {
            user: &claim.user_id,
            request: claim.request_id,
            reservation: record.reservation(claim),
        });
        match outcome {
            BatchOutcome::Stale => rejected.extend(claims.map(|claim| (claim, Reason::StaleEpoch))),
            _ => stored.extend(claims),
        }
    }

    match &locked {
        Some((campaign, false)) => {
            let mut rows = Rows {
                campaign,
                room: campaign.room(),
                rejected: &mut rejected,
                persisted: &mut persisted,
            };
            let (dead, alive) = stored
                .into_iter()
                .partition(|claim| request.dead.contains_key(&claim.reservation));
            rows.bury(session, dead, request.dead).await?;
            rows.issue(session, alive).await?;
        }
        _ => rejected.extend(stored.into_iter().map(|claim| (claim, Reason::CampaignGone))),
    }
    if locked.is_some() {
        sqlx::query("UPDATE campaign SET issued = issued + $2, parked = parked + $3, fence = $4 WHERE id = $1")
            .bind(request.campaign.0)
            .bind(persisted.issued.cast_signed())
            .bind(persisted.parked.cast_signed())
            .bind(request.token)
            .execute(&mut **session)
            .await?;
    }
    insert_rejections(session, request.campaign, &rejected).await?;
    persisted.rejected = rejected
        .into_iter()
        .map(|(claim, reason)| (claim.user.clone(), claim.request, claim.reservation, reason))
        .collect();
    still_decided(session, request.rests_on).await?;
    move_consumed(session, request.topic, request.advances).await?;
    Ok(persisted)
}

/// Rows and `consumed` do not always move together: a record that is finished before an earlier one of its partition is
/// passed by a later transaction. If Postgres was put back in between, `consumed` may be what it was and the rows not there.
async fn still_decided(session: &mut Session, batches: &[DecidedBatch]) -> Result<(), Halt> {
    if batches.is_empty() {
        return Ok(());
    }
    let missing: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM unnest($1::uuid[], $2::text[]) AS d(campaign_id, batch) \
         WHERE NOT EXISTS (SELECT 1 FROM batch b WHERE b.campaign_id = d.campaign_id AND b.batch = d.batch)",
    )
    .bind(batches.iter().map(|decided| decided.campaign.0).collect::<Vec<_>>())
    .bind(batches.iter().map(|decided| decided.batch.as_str()).collect::<Vec<_>>())
    .fetch_one(&mut **session)
    .await?;
    match missing {
        0 => Ok(()),
        missing => Err(Halt::Refused(PersistError::PutBack { missing })),
    }
}

/// The cuts that can make one of these records stale. None are read while all records are of the newest epoch.
async fn later_cuts(
    session: &mut Session,
    campaign: &CampaignRow,
    records: &[LocatedRecord],
) -> Result<Cuts, sqlx::Error> {
    let oldest = records.iter().map(|located| located.record.epoch).min();
    match oldest {
        Some(oldest) if oldest < campaign.epoch => read_cuts(session, campaign.id, oldest).await,
        _ => Ok(Cuts::new()),
    }
}

/// Writes the batches; answers the records that this transaction decides, in their order. A batch that two records
/// carry is decided by the first one.
async fn decide_batches<'a>(
    session: &mut Session,
    request: &PersistRequest<'a>,
    cuts: &Cuts,
    persisted: &mut Persisted,
) -> Result<Vec<(&'a LocatedRecord, BatchOutcome)>, sqlx::Error> {
    let mut seen = HashSet::new();
    let outcomes: Vec<(&LocatedRecord, BatchOutcome)> = request
        .records
        .iter()
        .filter(|located| seen.insert(&located.record.batch))
        .map(|located| {
            let stale = is_stale(located.record.epoch, located.partition, located.offset, cuts);
            let outcome = if stale {
                BatchOutcome::Stale
            } else {
                BatchOutcome::Stored
            };
            (located, outcome)
        })
        .collect();
    let batches: Vec<(&BatchId, BatchOutcome)> = outcomes
        .iter()
        .map(|(located, outcome)| (&located.record.batch, *outcome))
        .collect();
    let written = insert_batches(session, request.campaign, &batches).await?;
    let mut decided = Vec::with_capacity(outcomes.len());
    for (located, outcome) in outcomes {
        let batch = &located.record.batch;
        if written.contains(batch.as_str()) {
            persisted.decided.push(batch.clone());
            decided.push((located, outcome));
        } else {
            persisted.already_decided.insert(batch.clone());
        }
    }
    Ok(decided)
}

/// The claims of a live campaign on their way to rows.
struct Rows<'r, 'a> {
    campaign: &'r CampaignRow,
    /// Slots that are left.
    room: i64,
    rejected: &'r mut Vec<(Claim<'a>, Reason)>,
    persisted: &'r mut Persisted,
}

impl<'a> Rows<'_, 'a> {
    /// Parks or rejects the claims whose data is refused, unless they have their row: a commit whose answer was lost
    /// looks like a failed one.
    async fn bury(
        &mut self,
        session: &mut Session,
        dead: Vec<Claim<'a>>,
        reasons: &HashMap<Reservation, String>,
    ) -> Result<(), Halt> {
        if dead.is_empty() {
            return Ok(());
        }
        let mut holders = Holders::read(session, self.campaign.id, &dead).await?;
        let mut letters = Vec::new();
        for claim in dead {
            match holders.of(&claim) {
                Holder::SameRequest => {}
                Holder::AnotherRequest => self.rejected.push((claim, Reason::AlreadyIssued)),
                Holder::Nobody => {
                    holders.by_user.insert(claim.user.to_string(), claim.request.0);
                    letters.push(claim);
                }
            }
        }
        let count = dead_letters_of_the_last_minute(session, self.campaign.id).await? + letters.len() as i64;
        if !letters.is_empty() && count > DEAD_LETTERS_A_MINUTE {
            return Err(Halt::Refused(PersistError::TooManyDeadLetters {
                campaign: self.campaign.name.clone(),
                count,
            }));
        }
        match self.campaign.terms.on_dead_letter {
            OnDeadLetter::Release => self
                .rejected
                .extend(letters.into_iter().map(|claim| (claim, Reason::DeadLettered))),
            OnDeadLetter::Park => {
                let fitting = letters.len().min(usize::try_from(self.room).unwrap_or(0));
                let homeless = letters.split_off(fitting);
                self.rejected
                    .extend(homeless.into_iter().map(|claim| (claim, Reason::OutOfStock)));
                insert_parked(session, self.campaign.id, &letters, reasons).await?;
                self.room -= letters.len() as i64;
                self.persisted.parked += letters.len() as u64;
            }
        }
        Ok(())
    }

    /// Gives each claim its row, in order, while there is room.
    async fn issue(&mut self, session: &mut Session, mut waiting: Vec<Claim<'a>>) -> Result<(), Halt> {
        if self.campaign.parked > 0 || self.persisted.parked > 0 {
            waiting = self.without_parked(session, waiting).await?;
        }
        for _ in 0..CODE_ROUNDS {
            let left = self.insert_while_room(session, waiting).await?;
            if left.is_empty() {
                return Ok(());
            }
            let holders = Holders::read(session, self.campaign.id, &left).await?;
            waiting = Vec::new();
            for claim in left {
                match holders.of(&claim) {
                    Holder::SameRequest => {}
                    Holder::AnotherRequest => self.rejected.push((claim, Reason::AlreadyIssued)),
                    Holder::Nobody if self.room == 0 => self.rejected.push((claim, Reason::OutOfStock)),
                    // Its code was taken: again with another one.
                    Holder::Nobody => waiting.push(claim),
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
        }
        Err(Halt::Sql(sqlx::Error::Protocol(format!(
            "{} rows were neither inserted nor in conflict with another one, {CODE_ROUNDS} times",
            waiting.len()
        ))))
    }

    /// Inserts from the front; a claim that got no row leaves its room to the next one. Answers those without a row.
    async fn insert_while_room(
        &mut self,
        session: &mut Session,
        mut waiting: Vec<Claim<'a>>,
    ) -> Result<Vec<Claim<'a>>, sqlx::Error> {
        let mut left = Vec::new();
        while self.room > 0 && !waiting.is_empty() {
            let fitting = waiting.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
            let later = waiting.split_off(fitting);
            let inserted = insert_coupons(session, self.campaign, &waiting).await?;
            self.room -= inserted.len() as i64;
            self.persisted.issued += inserted.len() as u64;
            left.extend(waiting.into_iter().filter(|claim| !inserted.contains(&claim.request.0)));
            waiting = later;
        }
        left.extend(waiting);
        Ok(left)
    }

    /// A parked user holds a slot, too: his other requests get none.
    async fn without_parked(
        &mut self,
        session: &mut Session,
        claims: Vec<Claim<'a>>,
    ) -> Result<Vec<Claim<'a>>, sqlx::Error> {
        let parked = Holders {
            by_user: parked_users(session, self.campaign.id, &claims).await?,
            requests: HashSet::new(),
        };
        let mut free = Vec::with_capacity(claims.len());
        for claim in claims {
            match parked.of(&claim) {
                Holder::SameRequest => {}
                Holder::AnotherRequest => self.rejected.push((claim, Reason::AlreadyIssued)),
                Holder::Nobody => free.push(claim),
            }
        }
        Ok(free)
    }
}

/// Who has what some claims want.
struct Holders {
    /// The request by which a user holds his slot.
    by_user: HashMap<String, Uuid>,
    /// Those of the claims' requests that are coupons, whoever's.
    requests: HashSet<Uuid>,
}

enum Holder {
    SameRequest,
    AnotherRequest,
    Nobody,
}

impl Holders {
    async fn read(session: &mut Session, campaign: CampaignId, claims: &[Claim<'_>]) -> Result<Self, sqlx::Error> {
        let rows = sqlx::query(
            "SELECT user_id, id FROM coupon WHERE campaign_id = $1 AND user_id = ANY($2) \
             UNION ALL SELECT NULL, id FROM coupon WHERE id = ANY($3)",
        )
        .bind(campaign.0)
        .bind(claims.iter().map(|claim| claim.user.as_str()).collect::<Vec<_>>())
        .bind(claims.iter().map(|claim| claim.request.0).collect::<Vec<_>>())
        .fetch_all(&mut **session)
        .await?;
        let mut holders = Self {
            by_user: parked_users(session, campaign, claims).await?,
            requests: HashSet::new(),
        };
        for row in rows {
            let request = row.try_get("id")?;
            match row.try_get::<Option<String>, _>("user_id")? {
                Some(user) => drop(holders.by_user.insert(user, request)),
                None => drop(holders.requests.insert(request)),
            }
        }
        Ok(holders)
    }

    fn of(&self, claim: &Claim<'_>) -> Holder {
        match self.by_user.get(claim.user.as_str()) {
            Some(request) if *request == claim.request.0 => Holder::SameRequest,
            Some(_) => Holder::AnotherRequest,
            None if self.requests.contains(&claim.request.0) => Holder::AnotherRequest,
            None => Holder::Nobody,
        }
    }
}

async fn dead_letters_of_the_last_minute(session: &mut Session, campaign: CampaignId) -> Result<i64, sqlx::Error> {
    sqlx::query(
        "SELECT (SELECT count(*) FROM rejection WHERE campaign_id = $1 AND reason = 'DEAD_LETTERED' \
                 AND decided_at > statement_timestamp() - interval '1 minute') \
              + (SELECT count(*) FROM parked WHERE campaign_id = $1 \
                 AND parked_at > statement_timestamp() - interval '1 minute')",
    )
    .bind(campaign.0)
    .fetch_one(&mut **session)
    .await?
    .try_get(0)
}
