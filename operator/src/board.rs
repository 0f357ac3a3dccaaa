//! What each campaign wants, as its last reconcile knew it. One task scales by all of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use campaign::name::CampaignName;
use tokio::sync::Notify;

use crate::demand::CampaignDemand;

/// All campaigns' demand. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Board {
    campaigns: Arc<Mutex<HashMap<CampaignName, Option<CampaignDemand>>>>,
    changed: Arc<Notify>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, HashMap<CampaignName, Option<CampaignDemand>>> {
        self.campaigns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The campaign wants this now.
    pub fn put(&self, campaign: &CampaignName, demand: CampaignDemand) {
        let before = self.lock().insert(campaign.clone(), Some(demand.clone()));
        if before != Some(Some(demand)) {
            self.changed.notify_one();
        }
    }

    /// The campaign's spec cannot be read: what it wanted before stays.
    pub fn put_unreadable(&self, campaign: &CampaignName) {
        self.lock().entry(campaign.clone()).or_insert(None);
    }

    /// The campaign is gone.
    pub fn remove(&self, campaign: &CampaignName) {
        if self.lock().remove(campaign).is_some() {
            self.changed.notify_one();
        }
    }

    /// The demand of all campaigns, once each of `names` has been reconciled; before, nobody knows what is wanted.
    pub fn complete(&self, names: &[CampaignName]) -> Option<Vec<CampaignDemand>> {
        let campaigns = self.lock();
        names
            .iter()
            .all(|name| campaigns.contains_key(name))
            .then(|| campaigns.values().flatten().cloned().collect())
    }

    /// Resolves after a change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use campaign::manifest::CouponCampaign;

    use super::*;

    #[test]
    fn nothing_is_known_before_every_campaign_was_looked_at() {
        let name = |name| CampaignName::new("shop", name).expect("valid");
        let manifest = CouponCampaign::from_yaml(include_str!("../../examples/flash-sale.yaml")).expect("valid");
        let wants = CampaignDemand::new(&manifest.spec, None);
        let board = Board::default();
        let names = [name("first"), name("second")];
        assert_eq!(board.complete(&names), None);
        board.put(&names[0], wants.clone());
        assert_eq!(board.complete(&names), None);
        board.put_unreadable(&names[1]);
        assert_eq!(board.complete(&names), Some(vec![wants.clone()]));
        // A spec that went bad keeps what it wanted.
        board.put_unreadable(&names[0]);
        assert_eq!(board.complete(&names), Some(vec![wants]));
        board.remove(&names[0]);
        assert_eq!(board.complete(&names[1..]), Some(vec![]));
    }
}
