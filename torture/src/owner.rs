//! The campaigns' owner: rounds as the operator makes them, and edits, pauses and rebuilds while the sale runs. Some are
//! cut short at a random moment, as by the death of whoever made them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use campaign::{
    align::Aligner,
    name::CampaignName,
    postgres::campaign::{CampaignTerms, OnCancel, OnDeadLetter},
    rebuild::Force,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::nemesis::Losable;

/// Between two rounds.
const ROUND: Duration = Duration::from_secs(2);
/// Between two edits, in ms.
const PAUSE: std::ops::Range<u64> = 800..3_000;

/// Terms of a campaign under torture.
pub fn terms(quantity: i64, on_cancel: OnCancel) -> CampaignTerms {
    CampaignTerms {
        quantity,
        ttl_ms: 3_600_000,
        opens_at: None,
        closes_at: None,
        paused: false,
        on_cancel,
        on_dead_letter: OnDeadLetter::Park,
        code_prefix: "T".to_owned(),
        valid_for_ms: None,
        details: serde_json::json!({}),
    }
}

/// Owns the campaigns of a run.
pub struct Owner {
    aligner: Aligner,
    campaigns: Vec<CampaignName>,
    losable: Losable,
    edits: Mutex<BTreeMap<String, u64>>,
}

impl Owner {
    /// Has edited nothing yet.
    pub fn new(aligner: Aligner, campaigns: Vec<CampaignName>, losable: Losable) -> Arc<Self> {
        Arc::new(Self {
            aligner,
            campaigns,
            losable,
            edits: Mutex::default(),
        })
    }

    /// How many edits of each kind went through, and how many were cut short.
    pub fn edits(&self) -> BTreeMap<String, u64> {
        self.edits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rounds over all campaigns until `stop`.
    pub async fn rounds(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(sleep(ROUND)).await.is_some() {
            for campaign in &self.campaigns {
                // A round writes no terms that anybody was told of.
                if let Err(error) = self.aligner.round(campaign).await {
                    tracing::debug!(%error, %campaign, "a round failed");
                }
            }
        }
    }

    /// Edits at random until `stop`, then resumes what is paused.
    pub async fn edit(&self, seed: u64, stop: &CancellationToken) {
        let mut random = StdRng::seed_from_u64(seed ^ 0x0ED1_7000);
        loop {
            let pause = Duration::from_millis(random.random_range(PAUSE));
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
            let campaign = &self.campaigns[random.random_range(0..self.campaigns.len())];
            let _losable = self.losable.read().await;
            let cut_short = random
                .random_bool(0.25)
                .then(|| Duration::from_millis(random.random_range(1..2_500)));
            let (name, edit) = self.draw(campaign, &mut random).await;
            let Some(edit) = edit else { continue };
            let done = match cut_short {
                None => edit.await,
                Some(limit) => tokio::time::timeout(limit, edit)
                    .await
                    .unwrap_or(Err("cut short".to_owned())),
            };
            let name = match &done {
                Ok(()) => name.to_owned(),
                Err(reason) if reason == "cut short" => format!("{name} cut short"),
                Err(_) => format!("{name} failed"),
            };
            *self
                .edits
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(name)
                .or_default() += 1;
        }
    }

    async fn draw<'a>(
        &'a self,
        campaign: &'a CampaignName,
        random: &mut StdRng,
    ) -> (&'static str, Option<futures::future::BoxFuture<'a, Result<(), String>>>) {
        let draw = random.random_range(0..100);
        let share = random.random_range(0.02..0.25);
        if draw < 12 {
            let rebuild = async {
                let rebuilt = self.aligner.rebuilder.rebuild(campaign, Force::Always).await;
                rebuilt.map(drop).map_err(|error| error.to_string())
            };
            return ("rebuild", Some(Box::pin(rebuild)));
        }
        let Ok(Some(row)) = self.aligner.database.campaign(campaign).await else {
            return ("nothing", None);
        };
        let mut terms = row.terms;
        let change = (terms.quantity as f64 * share) as i64 + 1;
        let name = if terms.paused {
            terms.paused = false;
            "resume"
        } else if draw < 50 {
            terms.quantity += change;
            "grow"
        } else if draw < 80 {
            terms.quantity = (terms.quantity - change).max(0);
            "shrink"
        } else {
            terms.paused = true;
            "pause"
        };
        let apply = async move {
            let applied = self.aligner.apply(campaign, &terms).await;
            applied.map(drop).map_err(|error| error.to_string())
        };
        (name, Some(Box::pin(apply)))
    }

    /// Resumes what is paused and aligns every campaign. `Err`: what did not work.
    pub async fn settle(&self) -> Result<(), String> {
        for campaign in &self.campaigns {
            let row = self.aligner.database.campaign(campaign).await;
            let row = row.map_err(|error| error.to_string())?;
            let Some(row) = row else { continue };
            let terms = CampaignTerms {
                paused: false,
                ..row.terms
            };
            let applied = self.aligner.apply(campaign, &terms).await;
            applied.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
