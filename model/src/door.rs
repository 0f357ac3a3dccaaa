//! The intake: reserve, publish, answer, give back.

use crate::{
    mutant::Mutant,
    protocol::{Action, Protocol},
    redis::Judgment,
    scope::Fault,
    state::{Stage, State},
};

impl Protocol {
    pub(crate) fn door_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in self.attempts() {
            let attempt = &state.attempts[usize::from(number)];
            match attempt.stage {
                Stage::NotBegun => {
                    let after = self.claim(number).after;
                    if after.is_none_or(|after| state.attempts[usize::from(after)].stage != Stage::NotBegun) {
                        actions.push(Action::Reserve(number));
                    }
                }
                Stage::Publishing if !attempt.in_flight => {
                    actions.push(Action::Acknowledge(number));
                    if !attempt.fresh && !self.scope().stored {
                        actions.push(Action::Unanswered(number));
                    }
                }
                Stage::Publishing if !self.scope().stored => {
                    actions.push(Action::NotStored(number));
                    if !attempt.fresh {
                        actions.push(Action::Unanswered(number));
                    }
                }
                Stage::Publishing => {}
                Stage::Releasing => actions.push(Action::GiveBackRelease(number)),
                Stage::Settling => actions.push(Action::GiveBackSettle(number)),
                Stage::Success | Stage::Over => {}
            }
            if attempt.in_flight && !self.stays_lost(state, number) {
                actions.push(Action::Append(number));
            }
            if attempt.fresh && !self.scope().stored {
                actions.push(Action::Expire(number));
            }
            let at_work = !matches!(attempt.stage, Stage::NotBegun | Stage::Success | Stage::Over);
            if at_work && state.faults > 0 && self.has(Fault::IntakeDies) {
                actions.push(Action::IntakeDies(number));
            }
        }
    }

    /// Where Postgres may be put back, a record does not come after it was abandoned: an abandonment of the lost seconds
    /// does not come back.
    fn stays_lost(&self, state: &State, attempt: u8) -> bool {
        self.has(Fault::PutBack) && (state.postgres.abandoned.has(attempt) || state.lost.has(attempt))
    }

    pub(crate) fn door_step(&self, state: &mut State, action: Action) -> bool {
        match action {
            // The script runs, its answer comes, and the record is handed over. Where the answer does not come, or the
            // intake dies before it sends, the record is as one that stays in flight for ever.
            Action::Reserve(number) => {
                let attempt = &mut state.attempts[usize::from(number)];
                match state.redis.reserve(self, number) {
                    Ok(Judgment::Reserved) => {
                        attempt.stage = Stage::Publishing;
                        attempt.fresh = true;
                        attempt.in_flight = true;
                        attempt.epoch = state.redis.epoch;
                    }
                    Ok(Judgment::Settled) => attempt.stage = Stage::Success,
                    // Nothing is reserved; the client may ask again.
                    Ok(Judgment::Duplicate | Judgment::SoldOut | Judgment::InFlight) | Err(_) => return false,
                }
            }
            Action::Append(number) => {
                state.attempts[usize::from(number)].in_flight = false;
                state.topic.append(number);
            }
            Action::Acknowledge(number) => {
                let attempt = &mut state.attempts[usize::from(number)];
                attempt.stage = if attempt.fresh || self.lacks(Mutant::SuccessOnLateAcknowledgement) {
                    Stage::Success
                } else {
                    self.after_unknown()
                };
            }
            Action::Unanswered(number) => state.attempts[usize::from(number)].stage = self.after_unknown(),
            // Too late to send, or refused before any send: it will never be appended.
            Action::NotStored(number) => {
                let attempt = &mut state.attempts[usize::from(number)];
                attempt.in_flight = false;
                attempt.stage = self.give_back();
            }
            Action::GiveBackRelease(number) => {
                let released = state.redis.release(self, number).is_ok();
                state.attempts[usize::from(number)].stage = if released && !self.lacks(Mutant::SettleBeforeRelease) {
                    Stage::Settling
                } else {
                    Stage::Over
                };
            }
            Action::GiveBackSettle(number) => {
                let settled = state.redis.settle(self, number).is_ok();
                state.attempts[usize::from(number)].stage = if settled && self.lacks(Mutant::SettleBeforeRelease) {
                    Stage::Releasing
                } else {
                    Stage::Over
                };
            }
            Action::Expire(number) => state.attempts[usize::from(number)].fresh = false,
            Action::IntakeDies(number) => {
                state.faults -= 1;
                state.attempts[usize::from(number)].stage = Stage::Over;
            }
            _ => return false,
        }
        true
    }

    fn after_unknown(&self) -> Stage {
        if self.lacks(Mutant::ReleaseOnUnknownPublish) {
            self.give_back()
        } else {
            Stage::Over
        }
    }

    fn give_back(&self) -> Stage {
        if self.lacks(Mutant::SettleBeforeRelease) {
            Stage::Settling
        } else {
            Stage::Releasing
        }
    }
}
