//! What the scripts of a campaign's state promise, in plain Rust: the same transitions on maps, without Redis.

use std::collections::{BTreeMap, BTreeSet};

use campaign::{
    identity::{BatchId, CampaignId, Epoch, RequestId, Reservation, UserId},
    redis::state::{
        Appended, Configured, Marker, MarkerAnswer, RebuildStep, RebuiltEntry, Refusal, ReserveOutcome, StateStatus,
        Transition,
    },
};

/// The keys of one campaign; `None` is an absent key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub meta: Option<Meta>,
    pub slots: Slots,
    /// By epoch.
    pub staging: BTreeMap<Epoch, Slots>,
}

/// `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub id: CampaignId,
    pub epoch: Epoch,
    /// `None`: it is rebuilt.
    pub status: Option<StateStatus>,
    /// False: another server built it.
    pub this_server: bool,
    /// Absent until the first commit.
    pub terms: Option<Terms>,
    pub pending: i64,
}

/// What `configure` sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub revision: i64,
    pub quantity: i64,
    pub window: Window,
}

/// Where the present time lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Before,
    Within,
    After,
}

/// The other four keys. An empty zset or hash is an absent one; `users` has its empty field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    pub occupied: Option<i64>,
    pub users: Option<BTreeMap<UserId, Marker>>,
    pub pending: BTreeSet<BatchId>,
    pub pending_claims: BTreeMap<BatchId, i64>,
}

/// Why a script does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    NotInitialized,
    Rebuilding,
}

impl Unusable {
    fn transition(self) -> Transition {
        match self {
            Self::NotInitialized => Transition::NotInitialized,
            Self::Rebuilding => Transition::Rebuilding,
        }
    }
}

impl Model {
    pub fn judge(&self) -> Result<(), Unusable> {
        match &self.meta {
            None => Err(Unusable::NotInitialized),
            Some(meta) if !meta.this_server => Err(Unusable::NotInitialized),
            Some(meta) if meta.status.is_none() => Err(Unusable::Rebuilding),
            Some(_) if self.slots.occupied.is_none() || self.slots.users.is_none() => Err(Unusable::NotInitialized),
            Some(_) => Ok(()),
        }
    }

    /// The parts of a usable state.
    fn usable(&mut self) -> Result<Usable<'_>, Unusable> {
        self.judge()?;
        let meta = self.meta.as_mut().unwrap();
        Ok(Usable {
            terms: meta.terms.as_mut().unwrap(),
            status: meta.status.as_mut().unwrap(),
            epoch: meta.epoch,
            total_pending: &mut meta.pending,
            occupied: self.slots.occupied.as_mut().unwrap(),
            users: self.slots.users.as_mut().unwrap(),
            pending: &mut self.slots.pending,
            pending_claims: &mut self.slots.pending_claims,
        })
    }

    /// `Err`: the whole call is refused (`NotOpenYet` without its time).
    pub fn reserve(
        &mut self,
        batch: &BatchId,
        claims: &[(UserId, RequestId)],
    ) -> Result<Vec<ReserveOutcome>, Option<Refusal>> {
        let state = self.usable().map_err(|unusable| match unusable {
            Unusable::NotInitialized => Some(Refusal::NotInitialized),
            Unusable::Rebuilding => Some(Refusal::Rebuilding),
        })?;
        match (state.terms.window, *state.status) {
            (Window::Before, _) => return Err(None),
            (Window::After, _) => return Err(Some(Refusal::Closed)),
            (Window::Within, StateStatus::Paused) => return Err(Some(Refusal::Paused)),
            (Window::Within, StateStatus::Open) => {}
        }
        let mut outcomes = Vec::new();
        for (index, (user, request)) in (0..).zip(claims) {
            let outcome = match state.users.get(user) {
                Some(Marker::Holds(holder, held)) if holder == request => {
                    if held.batch == *batch || state.pending.contains(&held.batch) {
                        ReserveOutcome::InFlight
                    } else {
                        ReserveOutcome::Settled
                    }
                }
                Some(Marker::Holds(holder, _) | Marker::Canceled(holder)) => ReserveOutcome::Duplicate(*holder),
                None if *state.occupied >= state.terms.quantity => ReserveOutcome::SoldOut,
                None => {
                    let marker = Marker::Holds(*request, batch.reservation(index));
                    state.users.insert(user.clone(), marker);
                    *state.occupied += 1;
                    *state.total_pending += 1;
                    state.pending.insert(batch.clone());
                    *state.pending_claims.entry(batch.clone()).or_default() += 1;
                    ReserveOutcome::Success
                }
            };
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    pub fn release(&mut self, claims: &[(UserId, Reservation)]) -> Transition {
        let mut state = match self.usable() {
            Ok(state) => state,
            Err(unusable) => return unusable.transition(),
        };
        let mut freed = 0;
        for (user, reservation) in claims {
            let held = state.users.get(user);
            if matches!(held, Some(Marker::Holds(_, held)) if held == reservation) {
                state.users.remove(user);
                state.free_slot(&reservation.batch);
                freed += 1;
            }
        }
        Transition::Done(freed)
    }

    pub fn settle(&mut self, batches: &[BatchId]) -> Transition {
        let state = match self.usable() {
            Ok(state) => state,
            Err(unusable) => return unusable.transition(),
        };
        let mut settled = 0;
        for batch in batches {
            if state.pending.remove(batch) {
                settled += 1;
                *state.total_pending -= state.pending_claims.remove(batch).unwrap_or_default();
            }
        }
        Transition::Done(settled)
    }

    pub fn restock(&mut self, user: &UserId, request: RequestId, epoch: Epoch) -> Transition {
        let mut state = match self.usable() {
            Ok(state) => state,
            Err(unusable) => return unusable.transition(),
        };
        if state.epoch != epoch {
            return Transition::Rebuilding;
        }
        match state.users.get(user).cloned() {
            None => {
                state.users.insert(user.clone(), Marker::Canceled(request));
                Transition::Done(0)
            }
            Some(Marker::Holds(holder, held)) if holder == request => {
                state.users.insert(user.clone(), Marker::Canceled(request));
                state.free_slot(&held.batch);
                Transition::Done(1)
            }
            Some(_) => Transition::Done(0),
        }
    }

    pub fn configure(&mut self, epoch: Epoch, terms: &Terms, status: StateStatus, ahead: bool) -> Configured {
        let state = match self.usable() {
            Ok(state) => state,
            Err(Unusable::NotInitialized) => return Configured::NotInitialized,
            Err(Unusable::Rebuilding) => return Configured::Rebuilding,
        };
        if state.epoch != epoch {
            return Configured::OtherEpoch(state.epoch);
        }
        let present = state.terms.revision;
        if present > terms.revision || (ahead && present == terms.revision) {
            return Configured::Stale {
                revision: state.terms.revision,
            };
        }
        *state.terms = terms.clone();
        state.terms.quantity = terms.quantity.max(*state.occupied);
        *state.status = status;
        Configured::Set {
            quantity: state.terms.quantity,
            taken: *state.occupied,
        }
    }

    pub fn marker(&self, user: &UserId) -> MarkerAnswer {
        match (self.judge(), &self.slots.users) {
            (Ok(()), Some(users)) => MarkerAnswer::Present(users.get(user).cloned()),
            _ => MarkerAnswer::Unknown,
        }
    }

    /// What the sweeper finds by scanning.
    pub fn claims_of(&self, batches: &[BatchId]) -> Option<Vec<(UserId, RequestId, Reservation)>> {
        self.judge().ok()?;
        let claims = self
            .slots
            .users
            .iter()
            .flatten()
            .filter_map(|(user, marker)| match marker {
                Marker::Holds(request, held) if batches.contains(&held.batch) => {
                    Some((user.clone(), *request, held.clone()))
                }
                _ => None,
            });
        Some(claims.collect())
    }

    pub fn begin(&mut self, id: CampaignId, epoch: Epoch) -> RebuildStep {
        if let Some(meta) = &self.meta
            && (meta.epoch > epoch || (meta.epoch == epoch && meta.status.is_some()))
        {
            return RebuildStep::Superseded;
        }
        let old = self.meta.take();
        self.meta = Some(Meta {
            id,
            epoch,
            status: None,
            this_server: true,
            pending: old.as_ref().map_or(0, |meta| meta.pending),
            terms: old.and_then(|meta| meta.terms),
        });
        let empty = Slots {
            occupied: Some(0),
            users: Some(BTreeMap::new()),
            ..Slots::default()
        };
        self.staging.insert(epoch, empty);
        RebuildStep::Done
    }

    fn is_rebuilt_as(&self, epoch: Epoch) -> bool {
        let ours = |meta: &Meta| meta.epoch == epoch && meta.status.is_none() && meta.this_server;
        self.meta.as_ref().is_some_and(ours) && self.staging.contains_key(&epoch)
    }

    pub fn append(&mut self, epoch: Epoch, entries: &[RebuiltEntry]) -> Appended {
        // An append of nothing does not ask.
        if entries.is_empty() {
            return Appended::Users(0);
        }
        if !self.is_rebuilt_as(epoch) {
            return Appended::Superseded;
        }
        let staging = self.staging.get_mut(&epoch).unwrap();
        let users = staging.users.as_mut().unwrap();
        let mut new = 0;
        for entry in entries {
            let (user, marker, batch) = match entry {
                RebuiltEntry::Holder(user, request, held) => (user, Marker::Holds(*request, held.clone()), None),
                RebuiltEntry::Canceled(user, request) => (user, Marker::Canceled(*request), None),
                RebuiltEntry::Pending(user, request, held, _) => {
                    (user, Marker::Holds(*request, held.clone()), Some(&held.batch))
                }
            };
            if users.contains_key(user) {
                continue;
            }
            if matches!(marker, Marker::Holds(..)) {
                *staging.occupied.as_mut().unwrap() += 1;
            }
            if let Some(batch) = batch {
                staging.pending.insert(batch.clone());
                *staging.pending_claims.entry(batch.clone()).or_default() += 1;
            }
            users.insert(user.clone(), marker);
            new += 1;
        }
        Appended::Users(new)
    }

    pub fn commit(
        &mut self,
        id: CampaignId,
        epoch: Epoch,
        terms: &Terms,
        status: StateStatus,
        users: u64,
    ) -> RebuildStep {
        let staged = self.staging.get(&epoch).and_then(|staging| staging.users.as_ref());
        if !self.is_rebuilt_as(epoch) || staged.is_none_or(|staged| (staged.len() as u64) < users) {
            return RebuildStep::Superseded;
        }
        self.slots = self.staging.remove(&epoch).unwrap();
        let taken = self.slots.occupied.unwrap();
        self.meta = Some(Meta {
            id,
            epoch,
            status: Some(status),
            this_server: true,
            terms: Some(Terms {
                quantity: terms.quantity.max(taken),
                ..terms.clone()
            }),
            pending: self.slots.pending_claims.values().sum(),
        });
        RebuildStep::Done
    }

    pub fn remove(&mut self, id: CampaignId) {
        if self.meta.as_ref().is_none_or(|meta| meta.id == id) {
            self.meta = None;
            self.slots = Slots::default();
        }
    }
}

struct Usable<'a> {
    terms: &'a mut Terms,
    status: &'a mut StateStatus,
    epoch: Epoch,
    total_pending: &'a mut i64,
    occupied: &'a mut i64,
    users: &'a mut BTreeMap<UserId, Marker>,
    pending: &'a mut BTreeSet<BatchId>,
    pending_claims: &'a mut BTreeMap<BatchId, i64>,
}

impl Usable<'_> {
    fn free_slot(&mut self, batch: &BatchId) {
        *self.occupied -= 1;
        if let Some(claims) = self.pending_claims.get_mut(batch) {
            *claims -= 1;
            *self.total_pending -= 1;
        }
    }
}
