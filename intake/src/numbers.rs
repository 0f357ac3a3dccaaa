//! What a campaign's state said last. A page that everybody reloads shows it: asking Redis for each of them would slow
//! the claims down.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use campaign::{
    name::CampaignName,
    redis::state::{StateAnswer, StateStore},
};
use tokio::sync::Mutex;

/// What is older is read again.
pub const LONGEST_AGE: Duration = Duration::from_millis(250);

/// The last answer for one campaign.
#[derive(Default)]
pub struct Numbers {
    last: ArcSwapOption<Reading>,
    reading: Mutex<()>,
}

struct Reading {
    /// When the answer came. A slow one serves those who waited for it, too: they must not ask one after the other.
    at: Instant,
    /// `None`: Redis could not be asked.
    answer: Option<Arc<StateAnswer>>,
}

impl Numbers {
    /// The state's answer, at most [`LONGEST_AGE`] old. Callers at the same time share one call. `None`: Redis could not
    /// be asked; an older answer is not given in its place.
    pub async fn read(&self, state: &StateStore, campaign: &CampaignName) -> Option<Arc<StateAnswer>> {
        if let Some(reading) = self.fresh() {
            return reading.answer.clone();
        }
        let _one = self.reading.lock().await;
        if let Some(reading) = self.fresh() {
            return reading.answer.clone();
        }
        let answer = match state.state(campaign).await {
            Ok(answer) => Some(Arc::new(answer)),
            Err(error) => {
                tracing::warn!(%campaign, %error, "a state could not be read");
                None
            }
        };
        self.last.store(Some(Arc::new(Reading {
            at: Instant::now(),
            answer: answer.clone(),
        })));
        answer
    }

    fn fresh(&self) -> Option<Arc<Reading>> {
        self.last
            .load_full()
            .filter(|reading| reading.at.elapsed() < LONGEST_AGE)
    }
}
