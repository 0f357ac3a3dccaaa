//! Waits until a system is quiet: everything claimed is decided, everything decided is told.

use std::{fmt, time::Duration};

use campaign::{postgres::campaign::CampaignRow, redis::state::StateAnswer};
use tokio::time::Instant;

use super::{AuditError, offsets::TopicOffsets, read::Sources};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// What a system still has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// Claims that Redis counts as pending.
    pub pending_claims: i64,
    /// Records before the worker.
    pub records: i64,
    /// Events in the outbox.
    pub outbox: i64,
    /// Events before the projection.
    pub events: i64,
    /// Campaigns that are being rebuilt.
    pub rebuilding: i64,
}

impl Unsettled {
    /// Whether nothing is left to do.
    pub fn is_quiet(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pending claims {}, records {}, outbox {}, events {}, rebuilding {}",
            self.pending_claims, self.records, self.outbox, self.events, self.rebuilding
        )
    }
}

impl Sources {
    /// What is left to do now.
    pub async fn unsettled(&self, campaigns: &[CampaignRow]) -> Result<Unsettled, AuditError> {
        let mut left = Unsettled::default();
        for campaign in campaigns {
            match self.state.state(&campaign.name).await? {
                StateAnswer::Present(numbers) => left.pending_claims += numbers.pending,
                StateAnswer::Rebuilding { .. } => left.rebuilding += 1,
                // Nobody is obliged to build it; the audit judges it.
                StateAnswer::NotInitialized => {}
            }
        }
        let (requests, lifecycle) = (self.naming.requests_topic(), self.naming.lifecycle_topic());
        let mut snapshot = self.database.audit_snapshot().await?;
        for campaign in campaigns {
            left.outbox += snapshot.waiting_events(campaign.id).await?;
        }
        let consumed_claims = snapshot.consumed(&requests).await?;
        let consumed_events = snapshot.consumed(&lifecycle).await?;
        snapshot.close().await?;
        let claims = TopicOffsets {
            consumed: consumed_claims,
            marks: self.reader.watermarks(&requests).await?,
        };
        let events = TopicOffsets {
            consumed: consumed_events,
            marks: self.reader.watermarks(&lifecycle).await?,
        };
        left.records = claims.lag();
        left.events = events.lag();
        Ok(left)
    }

    /// Waits until nothing is left to do, at most `limit`; answers what is left then. `each` hears of every look.
    pub async fn settled(
        &self,
        campaigns: &[CampaignRow],
        limit: Duration,
        mut each: impl FnMut(&Unsettled),
    ) -> Result<Unsettled, AuditError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = self.unsettled(campaigns).await?;
            each(&left);
            if left.is_quiet() || Instant::now() >= deadline {
                return Ok(left);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
