//! The transactions, each as one step: whoever decides about a slot holds the campaign's row from its first read to its
//! commit.

use crate::{
    mutant::Mutant,
    protocol::Protocol,
    state::{Attempts, Marker, Postgres, Slots, Topic},
};

/// What a persist wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persisted {
    /// The batch is decided; whether its claim has to be released.
    Decided {
        /// It has a rejection.
        release: bool,
    },
    /// `consumed` is not what was read: nothing is written.
    Moved,
}

/// What an abandon wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// It is abandoned.
    Written,
    /// Somebody else has decided; whether its claim has to be released.
    Decided {
        /// It has a rejection.
        release: bool,
    },
    /// `consumed` is behind what was seen.
    ConsumedBehind,
}

impl Postgres {
    /// The batches that are decided.
    pub fn is_decided(&self, attempt: u8) -> bool {
        self.stored.has(attempt) || self.abandoned.has(attempt) || self.stale.has(attempt)
    }

    /// `is_stale`: an epoch later than the record's has its cut at or before the record.
    pub fn is_stale(&self, epoch: u8, offset: u8) -> bool {
        self.cuts
            .iter()
            .skip(usize::from(epoch) + 1)
            .any(|cut| cut.is_some_and(|cut| offset >= cut))
    }

    /// Slots that the database has left.
    fn room(&self) -> u8 {
        self.quantity.saturating_sub(self.issued)
    }

    /// The worker's transaction for one record.
    pub fn persist(&mut self, protocol: &Protocol, attempt: u8, epoch: u8, offset: u8) -> Persisted {
        if !protocol.lacks(Mutant::OffsetsNotInTransaction) {
            if self.consumed != offset {
                return Persisted::Moved;
            }
            self.consumed += 1;
        }
        if self.is_decided(attempt) && !protocol.lacks(Mutant::NoBatchKey) {
            let release = self.rejected.has(attempt);
            return Persisted::Decided { release };
        }
        if self.is_stale(epoch, offset) {
            self.stale.insert(attempt);
            self.rejected.insert(attempt);
            return Persisted::Decided { release: true };
        }
        self.stored.insert(attempt);
        let release = match self.row_of(protocol, protocol.claim(attempt).user) {
            Some(row) => !protocol.same_request(row, attempt),
            None if self.room() == 0 => true,
            None => {
                self.rows.insert(attempt);
                self.issued += 1;
                false
            }
        };
        if release {
            self.rejected.insert(attempt);
        }
        Persisted::Decided { release }
    }

    /// The user's coupon, canceled or not: (campaign, user) is unique.
    fn row_of(&self, protocol: &Protocol, user: u8) -> Option<u8> {
        self.rows.iter().find(|&row| protocol.claim(row).user == user)
    }

    /// The sweeper's transaction. `seen`: what was consumed when it looked; `claim`: whether the claim holds a slot.
    pub fn abandon(&mut self, protocol: &Protocol, attempt: u8, seen: u8, claim: bool) -> Abandoned {
        if protocol.lacks(Mutant::NoAbandonedRow) {
            return Abandoned::Written;
        }
        if self.consumed < seen {
            return Abandoned::ConsumedBehind;
        }
        if self.abandoned.has(attempt) {
            return Abandoned::Written;
        }
        if self.is_decided(attempt) {
            let release = self.rejected.has(attempt);
            return Abandoned::Decided { release };
        }
        self.abandoned.insert(attempt);
        if claim {
            self.rejected.insert(attempt);
        }
        Abandoned::Written
    }

    /// The holders, as a rebuild stages them.
    pub fn holders(&self, protocol: &Protocol) -> Slots {
        let mut slots = Slots {
            revision: self.revision,
            quantity: self.quantity,
            ..Slots::default()
        };
        for row in self.rows.iter() {
            let marker = &mut slots.users[usize::from(protocol.claim(row).user)];
            if self.canceled.has(row) {
                *marker = Marker::Canceled(row);
            } else {
                *marker = Marker::Held(row);
                slots.taken += 1;
            }
        }
        slots
    }

    /// The claims that are stored before the cut and undecided, as a rebuild stages them after the holders: a user counts
    /// once, and the first entry wins.
    pub fn stage_claims(
        &self,
        protocol: &Protocol,
        topic: &Topic,
        epoch_of: impl Fn(u8) -> u8,
        cut: u8,
        slots: &mut Slots,
    ) {
        for (offset, attempt) in topic.range(self.consumed, cut) {
            if self.is_decided(attempt) || self.is_stale(epoch_of(attempt), offset) {
                continue;
            }
            let marker = &mut slots.users[usize::from(protocol.claim(attempt).user)];
            if *marker == Marker::None {
                *marker = Marker::Held(attempt);
                slots.taken += 1;
                slots.pending.insert(attempt);
                slots.pending_claims.insert(attempt);
            }
        }
    }

    /// `ISSUED → CANCELED` with `Restock`; false: not issued.
    pub fn cancel(&mut self, attempt: u8) -> bool {
        if !self.rows.has(attempt) || !self.canceled.insert(attempt) {
            return false;
        }
        self.issued -= 1;
        self.outbox.insert(attempt);
        true
    }

    /// Replaces the terms; false: refused.
    pub fn set_terms(&mut self, quantity: u8, revision: u8, new_revision: u8, epoch: Option<u8>) -> bool {
        let fits =
            self.revision == revision && epoch.is_none_or(|epoch| epoch == self.epoch) && self.issued <= quantity;
        if fits {
            self.quantity = quantity;
            self.revision = new_revision;
        }
        fits
    }

    /// Coupons that occupy a slot.
    pub fn occupying(&self) -> Attempts {
        self.rows.without(self.canceled)
    }
}
