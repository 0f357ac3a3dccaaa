//! Names of keys, topics, groups and locks, all under one installation's prefix, so that two installations can share
//! their servers.

use crate::{identity::Epoch, name::CampaignName};

/// Makes the names of one installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    prefix: String,
}

/// A prefix that would break key patterns or topic names.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("key prefix {0:?} must be 1 to 40 of a-z, 0-9 and '-'")]
pub struct PrefixError(String);

impl Naming {
    /// `prefix` goes before every key, topic and group.
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        let valid = (1..=40).contains(&prefix.len())
            && prefix
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if valid {
            Ok(Self {
                prefix: prefix.to_owned(),
            })
        } else {
            Err(PrefixError(prefix.to_owned()))
        }
    }

    /// The prefix itself.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The keys of a campaign's state. The braces are literal: one campaign's keys share one slot of a Cluster.
    pub fn state(&self, campaign: &CampaignName) -> StateKeys {
        let base = format!("{}:issue:state:{{{campaign}}}", self.prefix);
        StateKeys {
            meta: format!("{base}:meta"),
            occupied: format!("{base}:occupied-count"),
            users: format!("{base}:users"),
            pending: format!("{base}:pending"),
            pending_claims: format!("{base}:pending-claims"),
        }
    }

    /// The lock that guards the persisting of one campaign.
    pub fn issue_lock(&self, campaign: &CampaignName) -> String {
        format!("{}:lock:COUPON_ISSUE:{{{campaign}}}", self.prefix)
    }

    /// The lock that guards the rebuild of one campaign.
    pub fn rebuild_lock(&self, campaign: &CampaignName) -> String {
        format!("{}:lock:COUPON_ISSUE_STATE_INIT:{{{campaign}}}", self.prefix)
    }

    /// The lock that lets one sweeper run in the installation.
    pub fn sweeper_lock(&self) -> String {
        format!("{}:lock:{{COUPON_SWEEPER}}", self.prefix)
    }

    /// The lock that lets one outbox relay run in the installation.
    pub fn relay_lock(&self) -> String {
        format!("{}:lock:{{COUPON_OUTBOX_RELAY}}", self.prefix)
    }

    /// The processing limit of the installation.
    pub fn limit(&self) -> String {
        format!("{}:issue:{{limit}}", self.prefix)
    }

    /// Claims on their way to the worker.
    pub fn requests_topic(&self) -> String {
        format!("{}.issue.requests", self.prefix)
    }

    /// What could not be persisted.
    pub fn dlq_topic(&self) -> String {
        format!("{}.issue.dlq", self.prefix)
    }

    /// Events of coupons.
    pub fn lifecycle_topic(&self) -> String {
        format!("{}.lifecycle", self.prefix)
    }

    /// The workers' consumer group.
    pub fn worker_group(&self) -> String {
        format!("{}.issue.worker", self.prefix)
    }

    /// The projection's consumer group.
    pub fn activity_group(&self) -> String {
        format!("{}.activity", self.prefix)
    }
}

/// The keys of one campaign's state; see `lua/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateKeys {
    /// Hash: `id epoch revision quantity status opens_at closes_at ttl pending server`.
    pub meta: String,
    /// String: slots taken, pending and issued.
    pub occupied: String,
    /// Hash: user id → request id and reservation, or and `canceled`.
    pub users: String,
    /// Sorted set: batch, scored by time in ms.
    pub pending: String,
    /// Hash: batch → how many of its claims still hold a slot.
    pub pending_claims: String,
}

impl StateKeys {
    /// Where a rebuild of `epoch` gathers before it commits. Same slot.
    pub fn staging(&self, epoch: Epoch) -> Self {
        Self {
            meta: format!("{}:{epoch}", self.meta),
            occupied: format!("{}:{epoch}", self.occupied),
            users: format!("{}:{epoch}", self.users),
            pending: format!("{}:{epoch}", self.pending),
            pending_claims: format!("{}:{epoch}", self.pending_claims),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_contract() {
        let naming = Naming::new("coupon").expect("valid");
        let campaign = CampaignName::parse("shop/sale", "-").expect("valid");
        let keys = naming.state(&campaign);
        assert_eq!(keys.meta, "coupon:issue:state:{shop/sale}:meta");
        assert_eq!(keys.occupied, "coupon:issue:state:{shop/sale}:occupied-count");
        assert_eq!(keys.staging(Epoch(5)).users, "coupon:issue:state:{shop/sale}:users:5");
        assert_eq!(naming.requests_topic(), "coupon.issue.requests");
        assert_eq!(naming.dlq_topic(), "coupon.issue.dlq");
        assert_eq!(naming.lifecycle_topic(), "coupon.lifecycle");
        assert!(Naming::new("Coupon").is_err());
        assert!(Naming::new("a{b}").is_err());
    }
}
