//! One round over a campaign: applies wanted terms, aligns Redis to Postgres, rebuilds what is missing. The operator
//! runs it; the local stack runs it in the operator's place.
//!
//! Growing writes Postgres first, shrinking Redis first, so that the door never gives more than the database has room
//! for. Every change raises the terms' revision, and Redis refuses an older one: a writer that was held up cannot undo
//! what came after it.

pub mod deletion;

use jiff::Timestamp;

use crate::{
    mutant::{self, Mutant},
    name::CampaignName,
    postgres::{
        campaign::{CampaignRow, CampaignTerms, TermsChange},
        database::{Database, DatabaseError},
    },
    rebuild::{Force, RebuildError, Rebuilder, Rebuilt, configuration_of, serves},
    redis::{
        connection::RedisError,
        state::{Configuration, Configured, StateAnswer, StateNumbers, StateStatus, StateStore},
    },
};

/// How often a change starts anew when somebody else changes the same campaign.
const ATTEMPTS: usize = 10;

/// Applies and aligns.
#[derive(Clone)]
pub struct Aligner {
    /// The truth.
    pub database: Database,
    /// What the door judges by.
    pub state: StateStore,
    /// For a state that is missing.
    pub rebuilder: Rebuilder,
}

/// What a round found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// Redis agreed with Postgres.
    Aligned,
    /// Quantity, window, ttl or pause were set in Redis.
    Configured,
    /// The state was missing and was rebuilt (or somebody else is at it).
    Rebuilt(Rebuilt),
    /// The window is over and the state has expired: nothing to keep.
    Over,
    /// No live campaign has that name.
    NoCampaign,
}

/// What `apply` came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The campaign as it stands now. Its quantity is larger than the wanted one where more is taken already.
    pub campaign: CampaignRow,
    /// Whether it is new; a retired one that came back is not.
    pub created: bool,
}

/// Why a change or a round stopped. Nothing is half done that the next round does not finish.
#[derive(Debug, thiserror::Error)]
pub enum AlignError {
    /// Redis.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// Postgres.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The rebuild.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// Who holds a coupon already was promised something else.
    #[error(
        "campaign {name} was begun with codePrefix {prefix:?} and discount {discount}, which may not change while it has \
         holders: apply it with these (an object has to be deleted and applied again for that), or use another name"
    )]
    Promised {
        /// Which.
        name: CampaignName,
        /// The prefix that it was begun with.
        prefix: String,
        /// The discount that it was begun with.
        discount: serde_json::Value,
    },
    /// Somebody else kept changing the same campaign.
    #[error("campaign {0} kept changing under {ATTEMPTS} attempts to apply it; try again")]
    Contended(CampaignName),
}

impl Aligner {
    /// With what a rebuild is done with.
    pub fn new(rebuilder: Rebuilder) -> Self {
        Self {
            database: rebuilder.database.clone(),
            state: rebuilder.state.clone(),
            rebuilder,
        }
    }

    /// Makes the campaign what `terms` want, and its state ready.
    pub async fn apply(&self, name: &CampaignName, terms: &CampaignTerms) -> Result<Applied, AlignError> {
        let terms = &in_milliseconds(terms);
        let mut created = false;
        for _ in 0..ATTEMPTS {
            let (row, new) = self.create(name, terms).await?;
            created |= new;
            self.round_of(&row).await?;
            let change = if row.terms == *terms {
                Change::Made(row.terms.clone())
            } else if terms.quantity < row.terms.quantity {
                self.shrink(&row, terms).await?
            } else {
                self.grow(&row, terms).await?
            };
            let Change::Made(written) = change else { continue };
            if written != row.terms {
                tracing::info!(
                    campaign = %name,
                    quantity = written.quantity,
                    paused = written.paused,
                    opens_at = written.opens_at.map(tracing::field::display),
                    closes_at = written.closes_at.map(tracing::field::display),
                    "the terms are changed"
                );
            }
            let Some(campaign) = self.database.campaign(name).await? else {
                continue;
            };
            if campaign.terms == written {
                self.round_of(&campaign).await?;
                return Ok(Applied { campaign, created });
            }
        }
        Err(AlignError::Contended(name.clone()))
    }

    /// The campaign's row, made if there is none or brought back if it is retired, and whether it is new. Its terms are
    /// the wanted ones only if it is. Refuses terms that break what its holders were promised.
    pub async fn create(&self, name: &CampaignName, terms: &CampaignTerms) -> Result<(CampaignRow, bool), AlignError> {
        if let Some(live) = self.database.campaign(name).await? {
            keeps_promise(&live, terms)?;
            return Ok((live, false));
        }
        let retired = self.database.retired_campaign(name).await?;
        if let Some(retired) = &retired {
            keeps_promise(retired, terms)?;
        }
        let row = self.database.create_campaign(name, &in_milliseconds(terms)).await?;
        // Somebody else may have been faster than the look.
        keeps_promise(&row, terms)?;
        Ok((row, retired.is_none()))
    }

    /// Aligns Redis to Postgres once.
    pub async fn round(&self, name: &CampaignName) -> Result<Round, AlignError> {
        match self.database.campaign(name).await? {
            Some(row) => self.round_of(&row).await,
            None => Ok(Round::NoCampaign),
        }
    }

    async fn round_of(&self, row: &CampaignRow) -> Result<Round, AlignError> {
        let answer = self.state.state(&row.name).await?;
        let numbers = match answer {
            StateAnswer::Present(numbers) if serves(&StateAnswer::Present(numbers.clone()), row.id, row.epoch) => {
                numbers
            }
            StateAnswer::NotInitialized if is_over(row, Timestamp::now()) => return Ok(Round::Over),
            _ => {
                let rebuilt = self.rebuilder.rebuild(&row.name, Force::IfMissing).await?;
                return Ok(Round::Rebuilt(rebuilt));
            }
        };
        let row = &self.raise_past(row, numbers.revision).await?;
        let wanted = configuration_of(row, row.epoch);
        if agrees(&numbers, &wanted) {
            return Ok(Round::Aligned);
        }
        match self.state.configure(&row.name, &wanted).await? {
            Configured::Set { .. } => {
                tracing::info!(campaign = %row.name, revision = row.revision, "the state has the terms of Postgres");
                Ok(Round::Configured)
            }
            // Overtaken between the two calls: the next round sees what is there now.
            Configured::Stale { .. }
            | Configured::OtherEpoch(_)
            | Configured::Rebuilding
            | Configured::NotInitialized => Ok(Round::Aligned),
        }
    }

    /// A shrink that died after Redis left the state ahead of Postgres. Its writer may still come back: raising the
    /// revision past it makes its second half fail, and only then the state may grow back.
    async fn raise_past(&self, row: &CampaignRow, state_revision: i64) -> Result<CampaignRow, AlignError> {
        if state_revision <= row.revision {
            return Ok(row.clone());
        }
        let revision = state_revision + 1;
        match self
            .database
            .set_terms(row.id, &row.terms, row.revision, revision, None)
            .await?
        {
            TermsChange::Written(revision) => Ok(CampaignRow {
                revision,
                ..row.clone()
            }),
            TermsChange::Refused => Err(AlignError::Contended(row.name.clone())),
        }
    }

    async fn grow(&self, row: &CampaignRow, terms: &CampaignTerms) -> Result<Change, AlignError> {
        if mutant::is(Mutant::RaiseInRedisFirst) {
            let wanted = CampaignRow {
                terms: terms.clone(),
                revision: row.revision + 1,
                ..row.clone()
            };
            self.state
                .configure(&row.name, &configuration_of(&wanted, row.epoch))
                .await?;
        }
        let written = self
            .database
            .set_terms(row.id, terms, row.revision, row.revision + 1, None)
            .await?;
        Ok(match written {
            TermsChange::Written(_) => Change::Made(terms.clone()),
            TermsChange::Refused => Change::StartAnew,
        })
    }

    async fn shrink(&self, row: &CampaignRow, terms: &CampaignTerms) -> Result<Change, AlignError> {
        let revision = row.revision + 1;
        let ahead = CampaignRow {
            terms: no_more_open(&row.terms, terms),
            revision,
            ..row.clone()
        };
        let quantity = match self
            .state
            .configure_ahead(&row.name, &configuration_of(&ahead, row.epoch))
            .await?
        {
            Configured::Set { quantity, .. } => quantity,
            // The state of an over campaign is not kept. The rows alone are no bound: claims may wait in Kafka.
            Configured::NotInitialized => {
                self.rebuilder.rebuild(&row.name, Force::IfMissing).await?;
                return Ok(Change::StartAnew);
            }
            Configured::Stale { .. } | Configured::OtherEpoch(_) | Configured::Rebuilding => {
                return Ok(Change::StartAnew);
            }
        };
        let reached = CampaignTerms {
            quantity,
            ..terms.clone()
        };
        let written = self
            .database
            .set_terms(row.id, &reached, row.revision, revision, Some(row.epoch))
            .await?;
        Ok(match written {
            TermsChange::Written(_) => Change::Made(reached),
            TermsChange::Refused => Change::StartAnew,
        })
    }
}

/// Whether `wanted` leaves what the campaign's holders were promised.
pub fn keeps_promise(row: &CampaignRow, wanted: &CampaignTerms) -> Result<(), AlignError> {
    let (prefix, discount) = row.terms.promised();
    if (prefix, discount) == wanted.promised() {
        return Ok(());
    }
    Err(AlignError::Promised {
        name: row.name.clone(),
        prefix: prefix.to_owned(),
        discount: discount.clone(),
    })
}

/// Redis keeps times in ms and Postgres in µs: finer ones would never be found again as they were wanted.
fn in_milliseconds(terms: &CampaignTerms) -> CampaignTerms {
    let cut = |at: Option<Timestamp>| at.map(|at| Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at));
    CampaignTerms {
        opens_at: cut(terms.opens_at),
        closes_at: cut(terms.closes_at),
        ..terms.clone()
    }
}

/// `wanted`, but never open where `row` is shut: what Redis may be told before Postgres is. Whoever finds the row paused
/// relies on the door being shut, and ends the campaign once nothing is on its way.
fn no_more_open(row: &CampaignTerms, wanted: &CampaignTerms) -> CampaignTerms {
    CampaignTerms {
        paused: row.paused || wanted.paused,
        // None is before every time.
        opens_at: row.opens_at.max(wanted.opens_at),
        closes_at: [row.closes_at, wanted.closes_at].into_iter().flatten().min(),
        ..wanted.clone()
    }
}

enum Change {
    Made(CampaignTerms),
    StartAnew,
}

/// Whether the window has closed; then a missing state is not rebuilt.
pub fn is_over(row: &CampaignRow, now: Timestamp) -> bool {
    row.terms.closes_at.is_some_and(|closes_at| closes_at <= now)
}

/// Whether the state needs no `configure`. A quantity below what is taken cannot be reached.
fn agrees(numbers: &StateNumbers, wanted: &Configuration) -> bool {
    numbers.revision == wanted.revision
        && numbers.quantity == wanted.quantity.max(numbers.taken)
        && numbers.opens_at == wanted.opens_at
        && numbers.closes_at == wanted.closes_at
        && (numbers.status == StateStatus::Paused) == wanted.paused
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use crate::postgres::campaign::{OnCancel, OnDeadLetter};

    fn terms(quantity: i64, paused: bool, opens_at: Option<i64>, closes_at: Option<i64>) -> CampaignTerms {
        let at = |second: Option<i64>| second.map(|second| Timestamp::from_second(second).unwrap());
        CampaignTerms {
            quantity,
            ttl_ms: 60_000,
            opens_at: at(opens_at),
            closes_at: at(closes_at),
            paused,
            on_cancel: OnCancel::Restock,
            on_dead_letter: OnDeadLetter::Park,
            code_prefix: String::new(),
            valid_for_ms: None,
            details: serde_json::Value::Null,
        }
    }

    #[test]
    fn what_redis_is_told_ahead_is_open_only_when_both_terms_are() {
        for (row, wanted, ahead) in [
            ((false, None, None), (false, None, None), (false, None, None)),
            ((true, None, None), (false, None, None), (true, None, None)),
            ((false, None, None), (true, None, None), (true, None, None)),
            ((false, Some(5), None), (false, None, None), (false, Some(5), None)),
            ((false, Some(5), None), (false, Some(3), None), (false, Some(5), None)),
            ((false, Some(5), None), (false, Some(7), None), (false, Some(7), None)),
            ((false, None, Some(9)), (false, None, None), (false, None, Some(9))),
            ((false, None, Some(9)), (false, None, Some(12)), (false, None, Some(9))),
            ((false, None, None), (false, None, Some(12)), (false, None, Some(12))),
            (
                (false, Some(1), Some(2)),
                (false, Some(3), Some(4)),
                (false, Some(3), Some(2)),
            ),
        ] {
            let of = |quantity, (paused, opens_at, closes_at)| terms(quantity, paused, opens_at, closes_at);
            assert_eq!(
                no_more_open(&of(10, row), &of(5, wanted)),
                of(5, ahead),
                "{row:?} {wanted:?}"
            );
        }
    }
}
