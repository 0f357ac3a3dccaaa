//! The rebuild, step by step.

use crate::{
    mutant::Mutant,
    protocol::{Action, Protocol},
    scope::Fault,
    state::{Attempts, EPOCHS, RebuildStep, Rebuilder, Stage, State},
};

impl Protocol {
    pub(crate) fn rebuilder_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..self.scope().rebuilders {
            let rebuilder = &state.rebuilders[usize::from(number)];
            match rebuilder.step {
                RebuildStep::Idle => {
                    let free = state.rebuilders.iter().all(|other| !other.locked);
                    let first = state.rebuilders[..usize::from(number)]
                        .iter()
                        .all(|other| other.step != RebuildStep::Idle);
                    let serves = state.redis.serves(self, state.postgres.epoch);
                    if free && first && (!serves || state.put_back) && usize::from(state.newest_epoch) + 1 < EPOCHS {
                        actions.push(Action::RaiseEpoch(number));
                    }
                }
                RebuildStep::Raised => actions.push(Action::Begin(number)),
                RebuildStep::Begun(_) => actions.push(Action::WaitOut(number)),
                RebuildStep::Waited => actions.push(Action::ReadCut(number)),
                RebuildStep::Cut(_) => actions.push(Action::Snapshot(number)),
                RebuildStep::Rows(_) => actions.push(Action::SecondSnapshot(number)),
                RebuildStep::Staged => actions.push(Action::Commit(number)),
            }
            if rebuilder.step == RebuildStep::Idle || state.faults == 0 {
                continue;
            }
            if self.has(Fault::RebuilderDies) {
                actions.push(Action::RebuilderDies(number));
            }
            if self.has(Fault::RebuilderLosesLock) && rebuilder.locked {
                actions.push(Action::RebuilderLosesLock(number));
            }
        }
    }

    pub(crate) fn rebuilder_step(&self, state: &mut State, action: Action) -> bool {
        let number = match action {
            Action::RaiseEpoch(number)
            | Action::Begin(number)
            | Action::WaitOut(number)
            | Action::ReadCut(number)
            | Action::Snapshot(number)
            | Action::SecondSnapshot(number)
            | Action::Commit(number)
            | Action::RebuilderDies(number)
            | Action::RebuilderLosesLock(number) => usize::from(number),
            _ => return false,
        };
        let mut rebuilder = state.rebuilders[number];
        let goes_on = match (action, rebuilder.step) {
            (Action::RaiseEpoch(_), _) => {
                state.newest_epoch += 1;
                state.postgres.epoch = state.newest_epoch;
                state.put_back = false;
                rebuilder = Rebuilder {
                    step: RebuildStep::Raised,
                    epoch: state.newest_epoch,
                    locked: true,
                    staged: None,
                };
                true
            }
            (Action::Begin(_), _) => {
                rebuilder.step = RebuildStep::Begun(began(state));
                state.redis.begin(rebuilder.epoch)
            }
            // `publishTimeout` and the margin after the door was shut. With replicas, after an old primary has stopped
            // writing.
            (Action::WaitOut(_), RebuildStep::Begun(before)) => {
                if !self.lacks(Mutant::RebuildWithoutWait) {
                    for attempt in before.iter() {
                        state.attempts[usize::from(attempt)].fresh = false;
                    }
                }
                rebuilder.step = RebuildStep::Waited;
                true
            }
            (Action::ReadCut(_), _) => {
                rebuilder.step = RebuildStep::Cut(state.topic.end());
                true
            }
            (Action::Snapshot(_), RebuildStep::Cut(cut)) => self.snapshot(state, &mut rebuilder, cut),
            (Action::SecondSnapshot(_), RebuildStep::Rows(cut)) => {
                self.stage_claims(state, &mut rebuilder, cut);
                state.redis.appends(rebuilder.epoch)
            }
            (Action::Commit(_), _) => {
                state.redis.commit(self, rebuilder.epoch, rebuilder.staged);
                false
            }
            (Action::RebuilderDies(_), _) => {
                state.faults -= 1;
                false
            }
            (Action::RebuilderLosesLock(_), _) => {
                state.faults -= 1;
                rebuilder.locked = false;
                true
            }
            _ => return false,
        };
        state.rebuilders[number] = if goes_on { rebuilder } else { Rebuilder::default() };
        true
    }

    /// The transaction that stores the cut and reads everything; the appends go on inside. False: superseded, and then
    /// the cut is not stored.
    fn snapshot(&self, state: &mut State, rebuilder: &mut Rebuilder, cut: u8) -> bool {
        if state.postgres.epoch != rebuilder.epoch || !state.redis.appends(rebuilder.epoch) {
            return false;
        }
        if !self.lacks(Mutant::RebuildWithoutCut) {
            state.postgres.cuts[usize::from(rebuilder.epoch)] = Some(cut);
        }
        rebuilder.staged = Some(state.postgres.holders(self));
        if self.lacks(Mutant::RebuildWithTwoSnapshots) {
            rebuilder.step = RebuildStep::Rows(cut);
        } else {
            self.stage_claims(state, rebuilder, cut);
        }
        true
    }

    fn stage_claims(&self, state: &State, rebuilder: &mut Rebuilder, cut: u8) {
        rebuilder.step = RebuildStep::Staged;
        if self.lacks(Mutant::RebuildWithoutKafka) {
            return;
        }
        if let Some(staged) = &mut rebuilder.staged {
            let epoch_of = |attempt: u8| state.attempts[usize::from(attempt)].epoch;
            state.postgres.stage_claims(self, &state.topic, epoch_of, cut, staged);
        }
    }
}

/// The attempts that have begun and may still be answered SUCCESS.
fn began(state: &State) -> Attempts {
    let mut began = Attempts::default();
    for (number, attempt) in (0..).zip(&state.attempts) {
        if attempt.stage != Stage::NotBegun && attempt.fresh {
            began.insert(number);
        }
    }
    began
}
