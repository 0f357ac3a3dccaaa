//! Table `campaign`: what was applied, and the numbers that guard it.

use jiff::Timestamp;

use super::database::{Database, DatabaseError};
use crate::{
    identity::{CampaignId, Epoch},
    name::CampaignName,
};

/// What a cancel does with the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCancel {
    /// Somebody else may have it.
    Restock,
    /// It stays taken.
    Retain,
}

/// What becomes of a claim that cannot be persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDeadLetter {
    /// Its slot stays taken until somebody replays or discards it.
    Park,
    /// It is rejected and its slot is free.
    Release,
}

/// What the owner of a campaign wants; everything that `apply` writes.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignTerms {
    /// Coupons to give.
    pub quantity: i64,
    /// Life of the Redis state after the last reservation and after the close, in ms.
    pub ttl_ms: i64,
    /// The window, if any.
    pub opens_at: Option<Timestamp>,
    /// The window, if any.
    pub closes_at: Option<Timestamp>,
    /// Whether claims are refused for now.
    pub paused: bool,
    /// What a cancel does.
    pub on_cancel: OnCancel,
    /// What a dead letter does.
    pub on_dead_letter: OnDeadLetter,
    /// Goes before the coupon's code, with a dash; may be empty.
    pub code_prefix: String,
    /// How long a coupon is valid from its issue, in ms; `None`: for ever.
    pub valid_for_ms: Option<i64>,
    /// `discount` and `metadata` of the manifest, kept as they came.
    pub details: serde_json::Value,
}

/// A live (not archived) campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignRow {
    /// Its id.
    pub id: CampaignId,
    /// Its name.
    pub name: CampaignName,
    /// What was applied.
    pub terms: CampaignTerms,
    /// Coupons that occupy a slot.
    pub issued: i64,
    /// Newest life of the Redis state; 0: never built.
    pub epoch: Epoch,
    /// Largest fencing token that wrote.
    pub fence: i64,
    /// Grows with every change of the terms.
    pub revision: i64,
}

/// What `set_terms` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermsChange {
    /// Written; the new revision.
    Written(i64),
    /// The revision or epoch is another one, or more is issued and parked than the quantity wants: start anew.
    Refused,
}

impl Database {
    /// The live campaign of that name.
    pub async fn campaign(&self, name: &CampaignName) -> Result<Option<CampaignRow>, DatabaseError> {
        let _ = name;
        unimplemented!()
    }

    /// All live campaigns (one query).
    pub async fn live_campaigns(&self) -> Result<Vec<CampaignRow>, DatabaseError> {
        unimplemented!()
    }

    /// Inserts the campaign if no live one has the name; answers the row that is there. Two at once: one wins.
    pub async fn create_campaign(
        &self,
        name: &CampaignName,
        terms: &CampaignTerms,
    ) -> Result<CampaignRow, DatabaseError> {
        let _ = (name, terms);
        unimplemented!()
    }

    /// Replaces the terms of a campaign if its revision is still `revision`, (where given) its epoch is `epoch`, and issued + parked ≤ quantity.
    pub async fn set_terms(
        &self,
        id: CampaignId,
        terms: &CampaignTerms,
        revision: i64,
        new_revision: i64,
        epoch: Option<Epoch>,
    ) -> Result<TermsChange, DatabaseError> {
        let _ = (id, terms, revision, new_revision, epoch);
        unimplemented!()
    }

    /// Archives a campaign (`deletionPolicy: Delete`): its name is free, its claims are `CAMPAIGN_GONE`.
    pub async fn archive_campaign(&self, id: CampaignId) -> Result<(), DatabaseError> {
        let _ = id;
        unimplemented!()
    }

    /// Step 1 of a rebuild: `greatest(epoch + 1, unix seconds)`. Answers the new epoch and whether it is the first one. `None`: gone.
    pub async fn raise_epoch(&self, id: CampaignId) -> Result<Option<RaisedEpoch>, DatabaseError> {
        let _ = id;
        unimplemented!()
    }
}

/// A new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaisedEpoch {
    /// Never given before.
    pub epoch: Epoch,
    /// There was no state before: nothing can be on its way.
    pub first: bool,
}
