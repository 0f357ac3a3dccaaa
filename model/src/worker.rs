//! The worker: one record at a time. Without its lock and its fence, which the promise does not need.

use crate::{
    mutant::Mutant,
    postgres::Persisted,
    protocol::{Action, Protocol},
    scope::Fault,
    state::{State, Worker},
};

impl Protocol {
    pub(crate) fn worker_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..self.scope().workers {
            match state.workers[usize::from(number)] {
                Worker::Idle if state.postgres.consumed >= state.topic.end() => {}
                Worker::Idle if self.may_be_moved() => actions.push(Action::ReadRecord(number)),
                Worker::Idle if self.lacks(Mutant::OffsetsNotInTransaction) => {
                    actions.push(Action::MoveOffset(number));
                }
                Worker::Idle => actions.push(Action::Persist(number)),
                Worker::Read(_) if self.lacks(Mutant::OffsetsNotInTransaction) => {
                    actions.push(Action::MoveOffset(number));
                }
                Worker::Read(_) => actions.push(Action::Persist(number)),
                Worker::Moved(_) => actions.push(Action::Persist(number)),
                Worker::Release(_) => actions.push(Action::WorkerReleases(number)),
                Worker::Settle(_) => actions.push(Action::WorkerSettles(number)),
            }
            let wrote = !matches!(state.workers[usize::from(number)], Worker::Idle | Worker::Read(_));
            if wrote && state.faults > 0 && self.has(Fault::WorkerDies) {
                actions.push(Action::WorkerDies(number));
            }
        }
    }

    /// Whether `consumed` may be another one than was read, when a worker commits.
    fn may_be_moved(&self) -> bool {
        self.scope().workers > 1 || self.has(Fault::PutBack)
    }

    /// The record that a worker has read.
    fn record_of(&self, state: &State, number: u8) -> Option<u8> {
        match state.workers[usize::from(number)] {
            Worker::Idle => Some(state.postgres.consumed),
            Worker::Read(offset) | Worker::Moved(offset) => Some(offset),
            Worker::Release(_) | Worker::Settle(_) => None,
        }
    }

    pub(crate) fn worker_step(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::ReadRecord(number) => state.workers[usize::from(number)] = Worker::Read(state.postgres.consumed),
            Action::MoveOffset(number) => {
                let Worker::Read(offset) = state.workers[usize::from(number)] else {
                    return false;
                };
                let moved = state.postgres.consumed == offset;
                state.workers[usize::from(number)] = if moved {
                    state.postgres.consumed += 1;
                    Worker::Moved(offset)
                } else {
                    Worker::Idle
                };
            }
            Action::Persist(number) => {
                let Some(offset) = self.record_of(state, number) else {
                    return false;
                };
                let attempt = state.topic.at(offset);
                let epoch = state.attempts[usize::from(attempt)].epoch;
                state.workers[usize::from(number)] = match state.postgres.persist(self, attempt, epoch, offset) {
                    // It seeks to where Postgres says.
                    Persisted::Moved => Worker::Idle,
                    Persisted::Decided { release: true } if !self.lacks(Mutant::SettleBeforeRelease) => {
                        Worker::Release(attempt)
                    }
                    Persisted::Decided { .. } => Worker::Settle(attempt),
                };
            }
            Action::WorkerReleases(number) => {
                let Worker::Release(attempt) = state.workers[usize::from(number)] else {
                    return false;
                };
                let released = state.redis.release(self, attempt).is_ok();
                // A missing state is nothing to do: the rebuild reads the truth.
                state.workers[usize::from(number)] = if released && !self.lacks(Mutant::SettleBeforeRelease) {
                    Worker::Settle(attempt)
                } else {
                    Worker::Idle
                };
            }
            Action::WorkerSettles(number) => {
                let Worker::Settle(attempt) = state.workers[usize::from(number)] else {
                    return false;
                };
                let settled = state.redis.settle(self, attempt).is_ok();
                let released = !self.lacks(Mutant::SettleBeforeRelease) || !state.postgres.rejected.has(attempt);
                state.workers[usize::from(number)] = if settled && !released {
                    Worker::Release(attempt)
                } else {
                    Worker::Idle
                };
            }
            Action::WorkerDies(number) => {
                state.faults -= 1;
                state.workers[usize::from(number)] = Worker::Idle;
            }
            _ => return false,
        }
        true
    }
}
