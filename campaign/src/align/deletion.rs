//! Deleting a campaign: the door is shut, what is on its way becomes rows, and only then it ends. A SUCCESS is never
//! taken back, not even by its campaign's owner.

use std::time::{Duration, Instant};

use super::{ATTEMPTS, AlignError, Aligner, Change};
use crate::{
    identity::CampaignId,
    manifest::DeletionPolicy,
    name::CampaignName,
    postgres::campaign::{CampaignRow, CampaignTerms},
    rebuild::{Force, serves},
    redis::state::{StateAnswer, StateStatus},
};

/// Pause between two looks at what is on its way.
const POLL: Duration = Duration::from_millis(200);

/// What `delete` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The campaign of this id is archived or retired now, and its state is gone.
    Done(CampaignId),
    /// The door is shut, and it is not deleted: claims are on their way. Delete it again.
    Draining(Undrained),
    /// No live campaign has the name, and no retired one was to be archived; what a deletion that was cut short has left
    /// is gone now, too.
    NotLive,
}

/// What a deletion waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undrained {
    /// They have no outcome yet.
    #[error("{0} claims are on their way")]
    Claims(i64),
    /// Nobody can count what is on its way before it is there.
    #[error("its state is being built or shut")]
    State,
}

impl Aligner {
    /// Shuts the door, waits up to `limit` until nothing is on its way, then retires (`Retain`) or archives (`Delete`)
    /// the campaign and removes its state. May be repeated, and goes on where it was cut short.
    pub async fn delete(
        &self,
        name: &CampaignName,
        policy: DeletionPolicy,
        limit: Duration,
    ) -> Result<Deletion, AlignError> {
        let deadline = Instant::now() + limit;
        loop {
            let Some(row) = self.pause(name).await? else {
                match self.finish_ended(name, policy).await? {
                    Some(deletion) => return Ok(deletion),
                    // Applied again since it was looked for: it has to be drained first.
                    None => continue,
                }
            };
            let undrained = match self.undrained(&row).await? {
                None if self.end(&row, policy).await? => {
                    // After the row: while it is live, whoever misses the state builds it again.
                    self.state.remove(name, row.id).await?;
                    tracing::info!(campaign = %name, ?policy, "the campaign is drained and its state removed");
                    return Ok(Deletion::Done(row.id));
                }
                // Applied again since it was paused: claims may have come.
                None => Undrained::State,
                Some(undrained) => undrained,
            };
            if Instant::now() >= deadline {
                return Ok(Deletion::Draining(undrained));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends the campaign, unless its terms were changed since `row` was read: then it may be open again.
    async fn end(&self, row: &CampaignRow, policy: DeletionPolicy) -> Result<bool, AlignError> {
        Ok(match policy {
            DeletionPolicy::Retain => self.database.retire_campaign(row.id, row.revision).await?,
            DeletionPolicy::Delete => self.database.archive_campaign(row.id, row.revision).await?,
        })
    }

    /// The campaign as it stands, paused in Postgres. `None`: it is not live.
    async fn pause(&self, name: &CampaignName) -> Result<Option<CampaignRow>, AlignError> {
        for _ in 0..ATTEMPTS {
            let Some(row) = self.database.campaign(name).await? else {
                return Ok(None);
            };
            if row.terms.paused {
                return Ok(Some(row));
            }
            let paused = CampaignTerms {
                paused: true,
                ..row.terms.clone()
            };
            if let Change::Made(_) = self.grow(&row, &paused).await? {
                tracing::info!(campaign = %name, "the door is shut, the campaign is deleted once nothing is on its way");
            }
        }
        Err(AlignError::Contended(name.clone()))
    }

    /// What is still on its way. Only a state that serves, and is paused, can say that nothing is: a missing one is
    /// built from Postgres and Kafka first, also past the close.
    async fn undrained(&self, row: &CampaignRow) -> Result<Option<Undrained>, AlignError> {
        let answer = self.state.state(&row.name).await?;
        match &answer {
            StateAnswer::Present(numbers) if serves(&answer, row.id, row.epoch) => {
                if numbers.status == StateStatus::Paused {
                    return Ok((numbers.pending != 0).then_some(Undrained::Claims(numbers.pending)));
                }
                self.round_of(row).await?;
            }
            _ => {
                self.rebuilder.rebuild(&row.name, Force::IfMissing).await?;
            }
        }
        Ok(Some(Undrained::State))
    }

    /// Archives a retired campaign where that is wanted, and removes what may be left of an ended one's state. `None`: it
    /// is retired no more.
    async fn finish_ended(&self, name: &CampaignName, policy: DeletionPolicy) -> Result<Option<Deletion>, AlignError> {
        let Some(ended) = self.database.ended_campaign(name).await? else {
            return Ok(Some(Deletion::NotLive));
        };
        let archives = policy == DeletionPolicy::Delete && !ended.archived;
        if archives && !self.database.archive_retired_campaign(ended.id).await? {
            return Ok(None);
        }
        self.state.remove(name, ended.id).await?;
        Ok(Some(if archives {
            Deletion::Done(ended.id)
        } else {
            Deletion::NotLive
        }))
    }
}
