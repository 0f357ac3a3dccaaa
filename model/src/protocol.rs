//! The protocol as a state machine: what may happen next, and what comes of it.

use stateright::{Model, Property};

use crate::{
    mutant::Mutant,
    promise,
    scope::{Claim, Fault, Scope},
    state::{
        ATTEMPTS, Attempt, Attempts, EPOCHS, Postgres, Presence, Rebuilder, Redis, Slots, Stage, State, Sweeper, Topic,
        Worker, Writer,
    },
    terms,
};

/// The protocol in a scope, whole or with one rule left out.
#[derive(Clone, Debug)]
pub struct Protocol {
    scope: Scope,
    mutant: Option<Mutant>,
}

/// A step. Where it says no more, the step of the process that is due; the number is the attempt's or the process'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is explained where it is taken")]
pub enum Action {
    Reserve(u8),
    Append(u8),
    Acknowledge(u8),
    Unanswered(u8),
    NotStored(u8),
    GiveBackRelease(u8),
    GiveBackSettle(u8),
    Expire(u8),
    IntakeDies(u8),

    ReadRecord(u8),
    MoveOffset(u8),
    Persist(u8),
    WorkerReleases(u8),
    WorkerSettles(u8),
    WorkerDies(u8),

    ReadEndFirst(u8),
    FindExpired(u8, u8),
    ReadEnd(u8),
    LookIntoKafka(u8),
    Abandon(u8),
    SweeperReleases(u8),
    SweeperSettles(u8),
    SweeperDies(u8),

    RaiseEpoch(u8),
    Begin(u8),
    WaitOut(u8),
    ReadCut(u8),
    Snapshot(u8),
    SecondSnapshot(u8),
    Commit(u8),
    RebuilderDies(u8),
    RebuilderLosesLock(u8),

    Cancel(u8),
    ReadOutbox(u8),
    Restock,
    RemoveFromOutbox,
    RelayDies,

    ReadTerms(u8),
    CompareRevisions(u8),
    RaiseRevision(u8),
    Align(u8),
    Change(u8),
    ShrinkRow(u8),
    GrowRow(u8),
    WriterDies(u8),

    Flush,
    OlderCopy(u8),
    LoseKey,
    BackUp,
    PutBack,
}

impl Action {
    /// Whether the system does it by itself, as soon as it can. The others may happen or not: claims, cancels, copies, late
    /// records and faults.
    pub fn is_progress(self, protocol: &Protocol) -> bool {
        if let Self::Append(_) = self {
            return protocol.scope().stored;
        }
        !matches!(
            self,
            Self::Reserve(_)
                | Self::Cancel(_)
                | Self::BackUp
                | Self::IntakeDies(_)
                | Self::WorkerDies(_)
                | Self::SweeperDies(_)
                | Self::RebuilderDies(_)
                | Self::RebuilderLosesLock(_)
                | Self::RelayDies
                | Self::WriterDies(_)
                | Self::Flush
                | Self::OlderCopy(_)
                | Self::LoseKey
                | Self::PutBack
        )
    }
}

impl Protocol {
    /// The protocol in a scope.
    pub fn new(scope: &Scope, mutant: Option<Mutant>) -> Self {
        Self { scope: *scope, mutant }
    }

    /// What is explored.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Which rule is left out.
    pub fn mutant(&self) -> Option<Mutant> {
        self.mutant
    }

    /// Whether this rule is left out.
    pub fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether this kind of fault may happen.
    pub fn has(&self, fault: Fault) -> bool {
        self.scope.kinds.contains(&fault)
    }

    /// The claim that an attempt makes.
    pub fn claim(&self, attempt: u8) -> Claim {
        self.scope.claims[usize::from(attempt)]
    }

    /// Whether two attempts are of the same request.
    pub fn same_request(&self, one: u8, other: u8) -> bool {
        let (one, other) = (self.claim(one), self.claim(other));
        one.user == other.user && one.key == other.key
    }

    /// The attempts.
    pub fn attempts(&self) -> impl Iterator<Item = u8> + use<> {
        0..self.scope.claims.len() as u8
    }

    /// The writers of terms; the last one only aligns.
    pub fn writers(&self) -> u8 {
        match self.scope.terms.len() as u8 {
            0 => 0,
            writers => writers + 1,
        }
    }

    /// What may happen next; some of it may turn out to change nothing.
    pub(crate) fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.door_actions(state, actions);
        self.worker_actions(state, actions);
        self.sweeper_actions(state, actions);
        self.rebuilder_actions(state, actions);
        self.relay_actions(state, actions);
        self.writer_actions(state, actions);
        self.server_actions(state, actions);
    }

    fn server_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.has(Fault::PutBack) && state.backup.is_none() && !state.put_back {
            actions.push(Action::BackUp);
        }
        if state.faults == 0 {
            return;
        }
        if self.has(Fault::PutBack)
            && let Some(copy) = &state.backup
            && abandonments_lost(state, copy)
                .iter()
                .all(|attempt| state.topic.offset_of(attempt).is_none())
        {
            actions.push(Action::PutBack);
        }
        if state.redis.presence == Presence::Missing {
            return;
        }
        if self.has(Fault::Flush) {
            actions.push(Action::Flush);
        }
        if self.has(Fault::OlderCopy) {
            actions.extend(state.redis.slots.pending.iter().map(Action::OlderCopy));
        }
        if self.has(Fault::KeyLost) && !state.redis.rebuilding && !state.redis.count_missing {
            actions.push(Action::LoseKey);
        }
    }

    fn server_step(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::BackUp => state.backup = Some(state.postgres),
            Action::PutBack => {
                state.faults -= 1;
                let Some(copy) = state.backup.take() else { return false };
                state.lost = abandonments_lost(state, &copy);
                state.postgres = copy;
                state.put_back = true;
                // A restore takes longer than the moment between a transaction and its scripts.
                for worker in &mut state.workers {
                    if matches!(worker, Worker::Release(_) | Worker::Settle(_)) {
                        *worker = Worker::Idle;
                    }
                }
                for sweeper in &mut state.sweepers {
                    if matches!(sweeper, Sweeper::Release(_) | Sweeper::Settle(_)) {
                        *sweeper = Sweeper::Idle;
                    }
                }
            }
            Action::Flush => {
                state.faults -= 1;
                lose(state);
            }
            Action::OlderCopy(attempt) => {
                state.faults -= 1;
                let older = without(self, state.redis, attempt);
                lose(state);
                // Every script refuses it, and a rebuild writes over it: without this mutant it is a missing one.
                if self.lacks(Mutant::NoRunIdCheck) {
                    state.redis = older;
                }
            }
            Action::LoseKey => {
                state.faults -= 1;
                state.redis.count_missing = true;
            }
            _ => return false,
        }
        true
    }

    /// Whether a step that the system takes by itself is due.
    pub fn is_moving(&self, state: &State) -> bool {
        let mut actions = Vec::with_capacity(24);
        self.all_actions(state, &mut actions);
        actions
            .into_iter()
            .any(|action| action.is_progress(self) && self.next_state(state, action).is_some())
    }

    /// Forgets what cannot matter any more, so that situations that differ only in it are one.
    fn forget(&self, state: &mut State) {
        // Processes of a kind are alike.
        state.sweepers[..usize::from(self.scope.sweepers)].sort_unstable();
        state.workers[..usize::from(self.scope.workers)].sort_unstable();
        if self.writers() > 0 {
            terms::renumber_revisions(state);
        }
        let keeps = self.has(Fault::PutBack);
        for number in self.attempts() {
            let stored = state.topic.offset_of(number).is_some();
            let decided = state.postgres.is_decided(number) && !keeps;
            let attempt = &mut state.attempts[usize::from(number)];
            if !matches!(attempt.stage, Stage::Success | Stage::Over) {
                continue;
            }
            // It is answered. The sweeper may come earlier than in the product, which is no help to the promise.
            attempt.fresh = false;
            if !attempt.in_flight && (decided || !stored) {
                attempt.epoch = 0;
            }
        }
        if keeps || self.lacks(Mutant::OffsetsNotInTransaction) {
            return;
        }
        // Only what is still to be read is compared with cuts.
        let consumed = state.postgres.consumed;
        state.topic.sort_before(consumed);
        for cut in state.postgres.cuts.iter_mut().flatten() {
            if *cut <= consumed {
                *cut = 0;
            }
        }
    }
}

/// The abandonments that this copy of Postgres does not have.
fn abandonments_lost(state: &State, copy: &Postgres) -> Attempts {
    state.postgres.abandoned.without(copy.abandoned)
}

/// Redis is empty, and with it what was staged.
fn lose(state: &mut State) {
    state.redis = Redis::default();
    for rebuilder in &mut state.rebuilders {
        rebuilder.staged = None;
    }
}

/// A copy from before this attempt's reserve call, as it looks on another server.
fn without(protocol: &Protocol, redis: Redis, attempt: u8) -> Redis {
    let mut older = redis;
    let _ = older.release(protocol, attempt);
    older.slots.pending.remove(attempt);
    older.presence = Presence::OlderCopy;
    older
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut cuts = [None; EPOCHS];
        cuts[1] = Some(0);
        let mut state = State {
            attempts: [Attempt::default(); ATTEMPTS],
            topic: Topic::default(),
            redis: Redis {
                presence: Presence::Here,
                epoch: 1,
                slots: Slots {
                    revision: 1,
                    quantity: self.scope.quantity,
                    ..Slots::default()
                },
                ..Redis::default()
            },
            postgres: Postgres {
                epoch: 1,
                cuts,
                quantity: self.scope.quantity,
                revision: 1,
                issued: 0,
                rows: Attempts::default(),
                canceled: Attempts::default(),
                stored: Attempts::default(),
                abandoned: Attempts::default(),
                stale: Attempts::default(),
                rejected: Attempts::default(),
                consumed: 0,
                outbox: Attempts::default(),
            },
            backup: None,
            lost: Attempts::default(),
            put_back: false,
            newest_epoch: 1,
            workers: Default::default(),
            sweepers: Default::default(),
            rebuilders: [Rebuilder::default(); 2],
            relay: Default::default(),
            writers: [Writer::default(); 3],
            faults: self.scope.faults,
            cancels: self.scope.cancels,
        };
        for (writer, &wanted) in state.writers.iter_mut().zip(self.scope.terms) {
            writer.wanted = wanted;
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.all_actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        let taken = self.door_step(&mut next, action)
            || self.worker_step(&mut next, action)
            || self.sweeper_step(&mut next, action)
            || self.rebuilder_step(&mut next, action)
            || self.relay_step(&mut next, action)
            || self.writer_step(&mut next, action)
            || self.server_step(&mut next, action);
        if !taken {
            return None;
        }
        self.forget(&mut next);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promise::properties(self)
    }
}
