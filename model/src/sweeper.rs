//! The sweeper: one batch a sweep.

use crate::{
    mutant::Mutant,
    postgres::Abandoned,
    protocol::{Action, Protocol},
    scope::Fault,
    state::{State, Sweeper},
};

impl Protocol {
    pub(crate) fn sweeper_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..self.scope().sweepers {
            let sweeper = state.sweepers[usize::from(number)];
            match sweeper {
                Sweeper::Idle if self.lacks(Mutant::EndOffsetsBeforeExpired) => {
                    actions.push(Action::ReadEndFirst(number));
                }
                Sweeper::Idle | Sweeper::EndFirst(_) => {
                    // Older than a publish may take, by Redis' clock and with the margin: the door knows it, too.
                    let expired = (state.redis.pending(self).iter())
                        .filter(|&attempt| !state.attempts[usize::from(attempt)].fresh);
                    actions.extend(expired.map(|attempt| Action::FindExpired(number, attempt)));
                }
                Sweeper::Found(_) => actions.push(Action::ReadEnd(number)),
                Sweeper::End(..) => actions.push(Action::LookIntoKafka(number)),
                Sweeper::Abandon(..) => actions.push(Action::Abandon(number)),
                Sweeper::Release(_) => actions.push(Action::SweeperReleases(number)),
                Sweeper::Settle(_) => actions.push(Action::SweeperSettles(number)),
            }
            let wrote = matches!(sweeper, Sweeper::Release(_) | Sweeper::Settle(_));
            if wrote && state.faults > 0 && self.has(Fault::SweeperDies) {
                actions.push(Action::SweeperDies(number));
            }
        }
    }

    pub(crate) fn sweeper_step(&self, state: &mut State, action: Action) -> bool {
        let (number, next) = match action {
            Action::ReadEndFirst(number) => (number, Sweeper::EndFirst(state.topic.end())),
            Action::FindExpired(number, attempt) => {
                let next = match state.sweepers[usize::from(number)] {
                    Sweeper::EndFirst(end) => Sweeper::End(attempt, end),
                    _ => Sweeper::Found(attempt),
                };
                (number, next)
            }
            Action::ReadEnd(number) => {
                let Sweeper::Found(attempt) = state.sweepers[usize::from(number)] else {
                    return false;
                };
                let end = state.topic.offset_of(attempt).map_or(0, |offset| offset + 1);
                (number, Sweeper::End(attempt, end))
            }
            Action::LookIntoKafka(number) => {
                let Sweeper::End(attempt, end) = state.sweepers[usize::from(number)] else {
                    return false;
                };
                (number, self.look(state, attempt, end))
            }
            Action::Abandon(number) => {
                let Sweeper::Abandon(attempt, consumed, claim) = state.sweepers[usize::from(number)] else {
                    return false;
                };
                let next = match state.postgres.abandon(self, attempt, consumed, claim) {
                    Abandoned::Written => self.bring_to_its_end(attempt, claim),
                    Abandoned::Decided { release } => self.bring_to_its_end(attempt, release),
                    Abandoned::ConsumedBehind => Sweeper::Idle,
                };
                (number, next)
            }
            Action::SweeperReleases(number) => {
                let Sweeper::Release(attempt) = state.sweepers[usize::from(number)] else {
                    return false;
                };
                let released = state.redis.release(self, attempt).is_ok();
                let settle = released && !self.lacks(Mutant::SettleBeforeRelease);
                (
                    number,
                    if settle {
                        Sweeper::Settle(attempt)
                    } else {
                        Sweeper::Idle
                    },
                )
            }
            Action::SweeperSettles(number) => {
                let Sweeper::Settle(attempt) = state.sweepers[usize::from(number)] else {
                    return false;
                };
                let settled = state.redis.settle(self, attempt).is_ok();
                let released = !self.lacks(Mutant::SettleBeforeRelease) || !state.postgres.rejected.has(attempt);
                let release = settled && !released;
                (
                    number,
                    if release {
                        Sweeper::Release(attempt)
                    } else {
                        Sweeper::Idle
                    },
                )
            }
            Action::SweeperDies(number) => {
                state.faults -= 1;
                (number, Sweeper::Idle)
            }
            _ => return false,
        };
        state.sweepers[usize::from(number)] = next;
        true
    }

    /// Reads `consumed`, then the outcome, then Kafka up to the end, then who holds the slot. One step: what comes between
    /// is found by the transaction that abandons. What has an outcome needs no look; what is still to be read is left to
    /// the worker.
    fn look(&self, state: &State, attempt: u8, end: u8) -> Sweeper {
        let consumed = state.postgres.consumed;
        if state.postgres.is_decided(attempt) {
            return self.bring_to_its_end(attempt, state.postgres.rejected.has(attempt));
        }
        let in_kafka = state.topic.range(consumed, end).any(|(_, record)| record == attempt);
        if in_kafka && !self.lacks(Mutant::NoEndOffsets) {
            return Sweeper::Idle;
        }
        match state.redis.holds(self, attempt) {
            Some(claim) if self.has(Fault::PutBack) => Sweeper::Abandon(attempt, consumed, claim),
            // It never goes back.
            Some(claim) => Sweeper::Abandon(attempt, 0, claim),
            None => Sweeper::Idle,
        }
    }

    fn bring_to_its_end(&self, attempt: u8, release: bool) -> Sweeper {
        if release && !self.lacks(Mutant::SettleBeforeRelease) {
            Sweeper::Release(attempt)
        } else {
            Sweeper::Settle(attempt)
        }
    }
}
