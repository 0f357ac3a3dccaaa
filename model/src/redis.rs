//! The scripts of `lua/`, as far as they decide.

use crate::{
    mutant::Mutant,
    protocol::Protocol,
    state::{Attempts, Marker, Presence, Redis, Slots},
};

/// Why a script did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `NOT_INITIALIZED`.
    NotInitialized,
    /// `REBUILDING`.
    Rebuilding,
}

/// What reserve answers to its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgment {
    /// The slot is reserved.
    Reserved,
    /// Another request of the user holds a slot, or held it and was canceled.
    Duplicate,
    /// No slot is free.
    SoldOut,
    /// This request holds the slot, and its batch is settled.
    Settled,
    /// This request holds the slot, and its batch is pending.
    InFlight,
}

impl Redis {
    /// `judge` of the prelude.
    pub fn judge(&self, protocol: &Protocol) -> Result<(), Refusal> {
        let here = match self.presence {
            Presence::Missing => false,
            Presence::Here => true,
            Presence::OlderCopy => protocol.lacks(Mutant::NoRunIdCheck),
        };
        if !here {
            return Err(Refusal::NotInitialized);
        }
        if self.rebuilding {
            return Err(Refusal::Rebuilding);
        }
        if self.count_missing {
            return Err(Refusal::NotInitialized);
        }
        Ok(())
    }

    /// `reserve` of one claim.
    pub fn reserve(&mut self, protocol: &Protocol, attempt: u8) -> Result<Judgment, Refusal> {
        if protocol.lacks(Mutant::MissingKeyAsZero) && self.count_missing {
            self.count_missing = false;
            self.slots.taken = 0;
        }
        self.judge(protocol)?;
        let claim = protocol.claim(attempt);
        let slots = &mut self.slots;
        let marker = &mut slots.users[usize::from(claim.user)];
        Ok(match *marker {
            Marker::None if slots.quantity > slots.taken => {
                *marker = Marker::Held(attempt);
                slots.taken += 1;
                slots.pending.insert(attempt);
                slots.pending_claims.insert(attempt);
                Judgment::Reserved
            }
            Marker::None => Judgment::SoldOut,
            Marker::Held(holder) if protocol.same_request(holder, attempt) => {
                if slots.pending.has(holder) {
                    Judgment::InFlight
                } else {
                    Judgment::Settled
                }
            }
            Marker::Held(_) | Marker::Canceled(_) => Judgment::Duplicate,
        })
    }

    /// `release` of one claim.
    pub fn release(&mut self, protocol: &Protocol, attempt: u8) -> Result<(), Refusal> {
        self.judge(protocol)?;
        let marker = &mut self.slots.users[usize::from(protocol.claim(attempt).user)];
        let held = match *marker {
            Marker::Held(holder) => holder == attempt || protocol.lacks(Mutant::ReleaseByUserAlone),
            Marker::None | Marker::Canceled(_) => false,
        };
        if held {
            *marker = Marker::None;
            self.slots.taken = self.slots.taken.saturating_sub(1);
            self.slots.pending_claims.remove(attempt);
        }
        Ok(())
    }

    /// `settle` of one batch.
    pub fn settle(&mut self, protocol: &Protocol, attempt: u8) -> Result<(), Refusal> {
        self.judge(protocol)?;
        self.slots.pending.remove(attempt);
        self.slots.pending_claims.remove(attempt);
        Ok(())
    }

    /// `restock` of the coupon that came of `attempt`.
    pub fn restock(&mut self, protocol: &Protocol, attempt: u8, epoch: u8) -> Result<(), Refusal> {
        self.judge(protocol)?;
        if self.epoch != epoch {
            return Err(Refusal::Rebuilding);
        }
        let marker = &mut self.slots.users[usize::from(protocol.claim(attempt).user)];
        match *marker {
            Marker::None => *marker = Marker::Canceled(attempt),
            Marker::Held(holder) if protocol.same_request(holder, attempt) => {
                *marker = Marker::Canceled(attempt);
                self.slots.taken = self.slots.taken.saturating_sub(1);
                self.slots.pending_claims.remove(holder);
            }
            Marker::Held(_) | Marker::Canceled(_) => {}
        }
        Ok(())
    }

    /// `configure`: the quantity, or `None` where the state is in another life or of a newer revision. Terms that are set
    /// `ahead` of Postgres are refused by their own revision, too: another writer has taken it.
    pub fn configure(&mut self, protocol: &Protocol, epoch: u8, revision: u8, wanted: u8, ahead: bool) -> Option<u8> {
        if self.judge(protocol).is_err() || self.epoch != epoch {
            return None;
        }
        let taken = ahead && self.slots.revision == revision && !protocol.lacks(Mutant::SharedRevision);
        if self.slots.revision > revision || taken {
            return None;
        }
        self.slots.revision = revision;
        self.slots.quantity = wanted.max(self.slots.taken);
        Some(self.slots.quantity)
    }

    /// `expired`: the batches that are pending; the caller knows their age.
    pub fn pending(&self, protocol: &Protocol) -> Attempts {
        match self.judge(protocol) {
            Ok(()) => self.slots.pending,
            Err(_) => Attempts::default(),
        }
    }

    /// `scan_claims` for one batch: whether its claim holds a slot. `None`: no usable state.
    pub fn holds(&self, protocol: &Protocol, attempt: u8) -> Option<bool> {
        self.judge(protocol).ok()?;
        let marker = self.slots.users[usize::from(protocol.claim(attempt).user)];
        Some(marker == Marker::Held(attempt))
    }

    /// `rebuild_begin`; false: superseded. What the old keys hold is read by nobody any more and goes at the commit.
    pub fn begin(&mut self, epoch: u8) -> bool {
        let present = self.presence != Presence::Missing;
        if present && (self.epoch > epoch || (self.epoch == epoch && !self.rebuilding)) {
            return false;
        }
        *self = Self {
            presence: Presence::Here,
            rebuilding: true,
            epoch,
            ..Self::default()
        };
        true
    }

    /// Whether `rebuild_append` goes on.
    pub fn appends(&self, epoch: u8) -> bool {
        self.presence == Presence::Here && self.rebuilding && self.epoch == epoch
    }

    /// `rebuild_commit`; false: superseded.
    pub fn commit(&mut self, protocol: &Protocol, epoch: u8, staged: Option<Slots>) -> bool {
        let ours = self.epoch == epoch || protocol.lacks(Mutant::NoEpochCheckInCommit);
        let Some(slots) = staged.filter(|_| ours && self.presence == Presence::Here && self.rebuilding) else {
            return false;
        };
        *self = Self {
            presence: Presence::Here,
            epoch,
            slots: Slots {
                quantity: slots.quantity.max(slots.taken),
                ..slots
            },
            ..Self::default()
        };
        true
    }

    /// Whether it serves a campaign of this epoch.
    pub fn serves(&self, protocol: &Protocol, epoch: u8) -> bool {
        self.judge(protocol).is_ok() && self.epoch == epoch
    }
}
