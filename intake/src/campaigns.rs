//! What the door knows of the campaigns: a snapshot of all live ones, read in one query at most once a period. A claim
//! costs no query, and neither do a thousand names that do not exist. Where it cannot be read again, the old one
//! serves.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use campaign::{
    name::{CampaignName, NameError},
    postgres::{
        campaign::CampaignRow,
        database::{Database, DatabaseError},
    },
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{door::lane::Lane, numbers::Numbers};

/// A query that takes longer counts as failed: claims for unknown names wait for it.
const QUERY_LIMIT: Duration = Duration::from_secs(2);

/// A live campaign as the door knows it.
pub struct LiveCampaign {
    /// The row, as of the snapshot.
    pub row: CampaignRow,
    /// Where its claims wait. Outlives snapshots for as long as the campaign's id stays.
    pub lane: Arc<Lane>,
    /// What its state said last. Outlives snapshots likewise.
    pub numbers: Arc<Numbers>,
}

/// Why there is no campaign to answer with.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The text is no campaign's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No live campaign has that name.
    #[error("there is no campaign {0}")]
    NotFound(CampaignName),
    /// The name is not in the snapshot and Postgres could not be asked: it may exist.
    #[error("campaign {0} is not known here and Postgres could not be asked; try again")]
    Unknown(CampaignName),
}

/// The snapshot and what keeps it fresh.
pub struct Campaigns {
    database: Database,
    default_namespace: String,
    period: Duration,
    current: ArcSwap<Snapshot>,
    last: Mutex<LastRead>,
}

/// By `namespace/name`, and by the bare name where the namespace is the default one.
type Snapshot = HashMap<String, Arc<LiveCampaign>>;

struct LastRead {
    at: Instant,
    succeeded: bool,
}

impl Campaigns {
    /// Reads the first snapshot. `period` is the least time between two queries.
    pub async fn load(
        database: Database,
        default_namespace: String,
        period: Duration,
    ) -> Result<Arc<Self>, DatabaseError> {
        let rows = database.live_campaigns().await?;
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(snapshot(rows, &default_namespace, &HashMap::new())),
            database,
            default_namespace,
            period,
            last: Mutex::new(LastRead {
                at: Instant::now(),
                succeeded: true,
            }),
        }))
    }

    /// The campaign that `text` names in the snapshot, without a query.
    pub fn get(&self, text: &str) -> Option<Arc<LiveCampaign>> {
        self.current.load().get(text).cloned()
    }

    /// The campaign that `text` names. A name that the snapshot lacks reads it again if a period has passed.
    pub async fn find(&self, text: &str) -> Result<Arc<LiveCampaign>, LookupError> {
        if let Some(found) = self.get(text) {
            return Ok(found);
        }
        let name = CampaignName::parse(text, &self.default_namespace)?;
        let succeeded = self.refresh_if_due().await;
        match self.get(text) {
            Some(found) => Ok(found),
            None if succeeded => Err(LookupError::NotFound(name)),
            None => Err(LookupError::Unknown(name)),
        }
    }

    /// Reads the snapshot again unless that was done within the period. Callers at the same time share one query.
    /// False: Postgres could not be asked, the old snapshot serves.
    pub async fn refresh_if_due(&self) -> bool {
        let mut last = self.last.lock().await;
        if last.at.elapsed() < self.period {
            return last.succeeded;
        }
        let read = tokio::time::timeout(QUERY_LIMIT, self.database.live_campaigns()).await;
        let succeeded = match read {
            Ok(Ok(rows)) => {
                let next = snapshot(rows, &self.default_namespace, &self.current.load());
                self.current.store(Arc::new(next));
                true
            }
            failed => {
                // Only the change is told: an outage of an hour is one line.
                if last.succeeded {
                    match failed {
                        Ok(Err(error)) => tracing::warn!(%error, "campaigns cannot be read, the last ones serve"),
                        _ => {
                            tracing::warn!(limit = ?QUERY_LIMIT, "campaigns are not read in time, the last ones serve")
                        }
                    }
                }
                false
            }
        };
        *last = LastRead {
            at: Instant::now(),
            succeeded,
        };
        succeeded
    }

    /// Keeps the snapshot fresh until `shutdown`.
    pub async fn keep_fresh(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(self.period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            self.refresh_if_due().await;
        }
    }

    /// Claims that wait for a reserve call, over all campaigns.
    pub fn waiting(&self) -> usize {
        let current = self.current.load();
        current
            .iter()
            .filter(|(text, _)| text.contains('/'))
            .map(|(_, campaign)| campaign.lane.waiting())
            .sum()
    }
}

fn snapshot(rows: Vec<CampaignRow>, default_namespace: &str, old: &Snapshot) -> Snapshot {
    let mut next = HashMap::with_capacity(rows.len() * 2);
    for row in rows {
        let full = row.name.to_string();
        // A name that was archived and applied again is another campaign: it gets a lane of its own.
        let (lane, numbers) = match old.get(&full) {
            Some(known) if known.row.id == row.id => (known.lane.clone(), known.numbers.clone()),
            _ => Default::default(),
        };
        let bare = (row.name.namespace() == default_namespace).then(|| row.name.name().to_owned());
        let campaign = Arc::new(LiveCampaign { row, lane, numbers });
        if let Some(bare) = bare {
            next.insert(bare, campaign.clone());
        }
        next.insert(full, campaign);
    }
    next
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use campaign::{
        identity::{CampaignId, Epoch},
        postgres::campaign::{CampaignTerms, OnCancel, OnDeadLetter},
    };
    use uuid::Uuid;

    use super::*;

    fn row(namespace: &str, name: &str, id: u128) -> CampaignRow {
        CampaignRow {
            id: CampaignId(Uuid::from_u128(id)),
            name: CampaignName::new(namespace, name).unwrap(),
            terms: CampaignTerms {
                quantity: 1,
                ttl_ms: 60_000,
                opens_at: None,
                closes_at: None,
                paused: false,
                on_cancel: OnCancel::Restock,
                on_dead_letter: OnDeadLetter::Park,
                code_prefix: String::new(),
                valid_for_ms: None,
                details: serde_json::Value::Null,
            },
            issued: 0,
            parked: 0,
            epoch: Epoch(0),
            fence: 0,
            revision: 1,
        }
    }

    #[test]
    fn a_bare_name_finds_only_the_default_namespace() {
        let found = snapshot(vec![row("shop", "a", 1), row("other", "b", 2)], "shop", &HashMap::new());
        assert!(found.contains_key("a") && found.contains_key("shop/a") && found.contains_key("other/b"));
        assert!(!found.contains_key("b"));
        assert!(Arc::ptr_eq(&found["a"], &found["shop/a"]));
    }

    #[test]
    fn a_lane_stays_with_its_campaign_and_not_with_its_name() {
        let first = snapshot(vec![row("shop", "a", 1), row("shop", "b", 2)], "shop", &HashMap::new());
        let second = snapshot(vec![row("shop", "a", 1), row("shop", "b", 3)], "shop", &first);
        assert!(Arc::ptr_eq(&first["shop/a"].lane, &second["shop/a"].lane));
        assert!(!Arc::ptr_eq(&first["shop/b"].lane, &second["shop/b"].lane));
    }
}
