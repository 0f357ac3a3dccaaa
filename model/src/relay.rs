//! Cancels, and the relay that gives their slots back.

use crate::{
    mutant::Mutant,
    protocol::{Action, Protocol},
    scope::Fault,
    state::{Relay, State},
};

impl Protocol {
    pub(crate) fn relay_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.cancels > 0 {
            actions.extend(state.postgres.occupying().iter().map(Action::Cancel));
        }
        match state.relay {
            Relay::Idle => actions.extend(state.postgres.outbox.iter().map(Action::ReadOutbox)),
            Relay::Read(..) => actions.push(Action::Restock),
            Relay::Confirmed(_) => {
                actions.push(Action::RemoveFromOutbox);
                if state.faults > 0 && self.has(Fault::RelayDies) {
                    actions.push(Action::RelayDies);
                }
            }
        }
    }

    pub(crate) fn relay_step(&self, state: &mut State, action: Action) -> bool {
        match (action, state.relay) {
            (Action::Cancel(attempt), _) => {
                state.cancels -= 1;
                return state.postgres.cancel(attempt);
            }
            // The epoch is read after the row.
            (Action::ReadOutbox(attempt), _) => state.relay = Relay::Read(attempt, state.postgres.epoch),
            (Action::Restock, Relay::Read(attempt, epoch)) => {
                let confirmed = state.redis.restock(self, attempt, epoch).is_ok();
                // The row stays until a state confirms it.
                state.relay = if confirmed || self.lacks(Mutant::RestockNotRepeated) {
                    Relay::Confirmed(attempt)
                } else {
                    Relay::Idle
                };
            }
            (Action::RemoveFromOutbox, Relay::Confirmed(attempt)) => {
                state.postgres.outbox.remove(attempt);
                state.relay = Relay::Idle;
            }
            (Action::RelayDies, _) => {
                state.faults -= 1;
                state.relay = Relay::Idle;
            }
            _ => return false,
        }
        true
    }
}
