//! Writers of a campaign's quantity, and the round that aligns Redis to Postgres.

use crate::{
    mutant::Mutant,
    protocol::{Action, Protocol},
    scope::Fault,
    state::{Presence, State, Writer, WriterStep},
};

impl Protocol {
    pub(crate) fn writer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..self.writers() {
            let writer = &state.writers[usize::from(number)];
            match writer.step {
                // A round that finds nothing to do is none.
                WriterStep::Idle if writer.wanted == 0 && is_aligned(self, state) => {}
                WriterStep::Idle => actions.push(Action::ReadTerms(number)),
                WriterStep::Row => actions.push(Action::CompareRevisions(number)),
                WriterStep::RaisePast(_) => actions.push(Action::RaiseRevision(number)),
                WriterStep::Align | WriterStep::AlignRaised => actions.push(Action::Align(number)),
                WriterStep::Change => actions.push(Action::Change(number)),
                WriterStep::ShrinkRow(_) => actions.push(Action::ShrinkRow(number)),
                WriterStep::GrowRow => actions.push(Action::GrowRow(number)),
                WriterStep::Done => {}
            }
            let at_work = !matches!(writer.step, WriterStep::Idle | WriterStep::Done) && writer.wanted != 0;
            if at_work && state.faults > 0 && self.has(Fault::WriterDies) {
                actions.push(Action::WriterDies(number));
            }
        }
    }

    pub(crate) fn writer_step(&self, state: &mut State, action: Action) -> bool {
        let number = match action {
            Action::ReadTerms(number)
            | Action::CompareRevisions(number)
            | Action::RaiseRevision(number)
            | Action::Align(number)
            | Action::Change(number)
            | Action::ShrinkRow(number)
            | Action::GrowRow(number)
            | Action::WriterDies(number) => usize::from(number),
            _ => return false,
        };
        let mut writer = state.writers[number];
        writer.step = match (action, writer.step) {
            (Action::ReadTerms(_), _) => {
                writer.quantity = state.postgres.quantity;
                writer.revision = state.postgres.revision;
                writer.epoch = state.postgres.epoch;
                WriterStep::Row
            }
            // Redis' numbers, in one answer.
            (Action::CompareRevisions(_), _) => compare(self, state, &writer),
            (Action::RaiseRevision(_), WriterStep::RaisePast(revision)) => {
                let raised = state
                    .postgres
                    .set_terms(writer.quantity, writer.revision, revision + 1, None);
                writer.revision = revision + 1;
                if raised {
                    WriterStep::AlignRaised
                } else {
                    WriterStep::Idle
                }
            }
            (Action::Align(_), step) => {
                let (epoch, revision) = (writer.epoch, writer.revision);
                state.redis.configure(self, epoch, revision, writer.quantity, false);
                if step == WriterStep::Align && writer.wanted != 0 {
                    WriterStep::Change
                } else {
                    WriterStep::Idle
                }
            }
            (Action::Change(_), _) => self.change(state, &mut writer),
            (Action::ShrinkRow(_), WriterStep::ShrinkRow(reached)) => {
                let (revision, epoch) = (writer.revision, Some(writer.epoch));
                if state.postgres.set_terms(reached, revision, revision + 1, epoch) {
                    writer.wanted = reached;
                }
                WriterStep::Idle
            }
            (Action::GrowRow(_), _) => {
                let revision = writer.revision;
                state.postgres.set_terms(writer.wanted, revision, revision + 1, None);
                WriterStep::Idle
            }
            (Action::WriterDies(_), _) => {
                state.faults -= 1;
                WriterStep::Done
            }
            _ => return false,
        };
        if matches!(writer.step, WriterStep::Idle | WriterStep::Done) {
            writer = Writer {
                step: writer.step,
                wanted: writer.wanted,
                ..Writer::default()
            };
        }
        state.writers[number] = writer;
        true
    }

    /// Growing writes Postgres first, shrinking Redis first. Then everything is looked at anew.
    fn change(&self, state: &mut State, writer: &mut Writer) -> WriterStep {
        let revision = writer.revision;
        if writer.wanted == writer.quantity {
            return WriterStep::Done;
        }
        if writer.wanted < writer.quantity || self.lacks(Mutant::RaiseInRedisFirst) {
            let configured = state
                .redis
                .configure(self, writer.epoch, revision + 1, writer.wanted, true);
            return match configured {
                Some(reached) if writer.wanted < writer.quantity => WriterStep::ShrinkRow(reached),
                Some(_) => WriterStep::GrowRow,
                None => WriterStep::Idle,
            };
        }
        state.postgres.set_terms(writer.wanted, revision, revision + 1, None);
        WriterStep::Idle
    }
}

/// The round's comparison; a state that does not serve is left to the rebuild.
fn compare(protocol: &Protocol, state: &State, writer: &Writer) -> WriterStep {
    let redis = &state.redis;
    if !redis.serves(protocol, writer.epoch) {
        return WriterStep::Idle;
    }
    if redis.slots.revision > writer.revision {
        return WriterStep::RaisePast(redis.slots.revision);
    }
    if redis.slots.revision != writer.revision || redis.slots.quantity != writer.quantity.max(redis.slots.taken) {
        return WriterStep::Align;
    }
    if writer.wanted == 0 {
        WriterStep::Idle
    } else {
        WriterStep::Change
    }
}

/// Whether a round would find nothing to do.
pub(crate) fn is_aligned(protocol: &Protocol, state: &State) -> bool {
    let (redis, postgres) = (&state.redis, &state.postgres);
    !redis.serves(protocol, postgres.epoch)
        || redis.slots.revision == postgres.revision && redis.slots.quantity == postgres.quantity.max(redis.slots.taken)
}

/// Only order, equality and "the next one" matter of revisions: without larger gaps, writers that keep starting anew come
/// back to where they were.
pub(crate) fn renumber_revisions(state: &mut State) {
    let mut seen = 0_u64;
    each_revision(state, |revision| seen |= 1 << *revision);
    each_revision(state, |revision| {
        let (mut new, mut last) = (0, None::<u8>);
        for old in (0..=*revision).filter(|old| seen & (1 << old) != 0) {
            new += last.map_or(1, |last| (old - last).min(2));
            last = Some(old);
        }
        *revision = new;
    });
}

fn each_revision(state: &mut State, mut visit: impl FnMut(&mut u8)) {
    visit(&mut state.postgres.revision);
    if !state.redis.rebuilding && state.redis.presence != Presence::Missing {
        visit(&mut state.redis.slots.revision);
    }
    for staged in state
        .rebuilders
        .iter_mut()
        .filter_map(|rebuilder| rebuilder.staged.as_mut())
    {
        visit(&mut staged.revision);
    }
    for writer in &mut state.writers {
        if !matches!(writer.step, WriterStep::Idle | WriterStep::Done) {
            visit(&mut writer.revision);
        }
        if let WriterStep::RaisePast(revision) = &mut writer.step {
            visit(revision);
        }
    }
}
