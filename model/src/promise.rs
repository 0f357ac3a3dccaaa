//! The promise, as properties of a moment, and the situations that show that the exploration came far enough.

use stateright::Property;

use crate::{
    protocol::Protocol,
    scope::{Fault, Situation},
    state::{Marker, RebuildStep, Relay, Stage, State, Sweeper, Worker, WriterStep},
    terms::is_aligned,
};

/// Those of the promise, then the scope's situations.
pub fn properties(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut properties = vec![
        always("never more coupons than the quantity", |_, state| {
            state.postgres.occupying().len() <= state.postgres.quantity
                && state.postgres.occupying().len() == state.postgres.issued
        }),
        always("never two coupons for one user", one_coupon_each),
        always("a SUCCESS is never taken back", success_is_kept),
        always(
            "nothing leaks: when it is quiet, all is accounted for",
            |protocol, state| is_busy(state) || protocol.is_moving(state) || all_accounted_for(protocol, state),
        ),
    ];
    // An early sign, not the promise itself: a mutant has to come to what a client or an owner would see.
    if protocol.mutant().is_none() {
        properties.push(always("the numbers add up while it runs", numbers_add_up));
    }
    properties.extend(protocol.scope().situations.iter().map(|&situation| reached(situation)));
    properties
}

/// What is judged: a property of one state.
type Holds = fn(&Protocol, &State) -> bool;

fn always(name: &'static str, holds: Holds) -> Property<Protocol> {
    Property::always(name, holds)
}

fn sometimes(name: &'static str, holds: Holds) -> Property<Protocol> {
    Property::sometimes(name, holds)
}

fn one_coupon_each(protocol: &Protocol, state: &State) -> bool {
    let mut seen = 0_u8;
    state.postgres.rows.iter().all(|row| {
        let user = 1 << protocol.claim(row).user;
        let first = seen & user == 0;
        seen |= user;
        first
    })
}

/// Its request has its coupon, or a record that will become it: not yet consumed, undecided and not stale.
fn success_is_kept(protocol: &Protocol, state: &State) -> bool {
    let postgres = &state.postgres;
    let told = protocol
        .attempts()
        .filter(|&attempt| state.attempts[usize::from(attempt)].stage == Stage::Success);
    for attempt in told {
        let has_row = postgres.rows.iter().any(|row| protocol.same_request(row, attempt));
        let will_have = || {
            state
                .topic
                .range(postgres.consumed, state.topic.end())
                .any(|(offset, record)| {
                    protocol.same_request(record, attempt)
                        && !postgres.is_decided(record)
                        && !postgres.is_stale(state.attempts[usize::from(record)].epoch, offset)
                })
        };
        // A worker of a mutant may have moved `consumed` already.
        let is_written = || {
            state.workers.iter().any(|worker| match worker {
                Worker::Moved(offset) => protocol.same_request(state.topic.at(*offset), attempt),
                _ => false,
            })
        };
        if !has_row && !will_have() && !is_written() {
            return false;
        }
    }
    true
}

/// `taken - pending - restocks ≤ issued ≤ taken ≤ quantity`, wherever a state serves; and the door never gives more than the
/// database has room for.
fn numbers_add_up(protocol: &Protocol, state: &State) -> bool {
    let (slots, postgres) = (&state.redis.slots, &state.postgres);
    if state.put_back || !state.redis.serves(protocol, postgres.epoch) {
        return true;
    }
    let room = slots.quantity <= postgres.quantity;
    if !(room && postgres.issued <= slots.taken && slots.taken <= slots.quantity) {
        return false;
    }
    // After a restore, a worker may still settle what it had persisted before: its row comes back a little later.
    let on_their_way = slots.pending_claims.len() + postgres.outbox.len();
    protocol.has(Fault::PutBack) || slots.taken <= postgres.issued + on_their_way
}

/// Whether some process is between two steps: then it goes on by itself.
fn is_busy(state: &State) -> bool {
    let at_work = |stage: Stage| !matches!(stage, Stage::NotBegun | Stage::Success | Stage::Over);
    state
        .attempts
        .iter()
        .any(|attempt| attempt.fresh || at_work(attempt.stage))
        || state.workers.iter().any(|&worker| worker != Worker::Idle)
        || (state.sweepers.iter()).any(|sweeper| !matches!(sweeper, Sweeper::Idle | Sweeper::EndFirst(_)))
        || state
            .rebuilders
            .iter()
            .any(|rebuilder| rebuilder.step != RebuildStep::Idle)
        || state.relay != Relay::Idle
        || (state.writers.iter()).any(|writer| !matches!(writer.step, WriterStep::Idle | WriterStep::Done))
}

/// `quantity = available + issued`, nothing is pending, and each SUCCESS has its coupon.
fn all_accounted_for(protocol: &Protocol, state: &State) -> bool {
    let (redis, postgres) = (&state.redis, &state.postgres);
    let has_coupon = |attempt| postgres.rows.iter().any(|row| protocol.same_request(row, attempt));
    let told = |attempt: u8| state.attempts[usize::from(attempt)].stage == Stage::Success;
    redis.serves(protocol, postgres.epoch)
        && redis.slots.taken == postgres.issued
        && redis.slots.pending.is_empty()
        && redis.slots.pending_claims.is_empty()
        && postgres.outbox.is_empty()
        && postgres.consumed == state.topic.end()
        && is_aligned(protocol, state)
        && (protocol.attempts()).all(|attempt| !told(attempt) || has_coupon(attempt))
        && (redis.slots.users.iter()).all(|&marker| match marker {
            Marker::None => true,
            Marker::Held(holder) => has_coupon(holder),
            Marker::Canceled(holder) => postgres.canceled.iter().any(|row| protocol.same_request(row, holder)),
        })
}

fn reached(situation: Situation) -> Property<Protocol> {
    match situation {
        Situation::SoldOut => sometimes("sold out", |protocol, state| {
            state.postgres.issued == protocol.scope().quantity
                && !protocol.is_moving(state)
                && (state.attempts.iter().zip(protocol.attempts())).any(|(attempt, _)| attempt.stage == Stage::NotBegun)
        }),
        Situation::TakenOver => sometimes("a claim in Kafka is taken over", |_, state| {
            let redis = &state.redis;
            (redis.slots.pending_claims.iter())
                .any(|attempt| !redis.rebuilding && state.attempts[usize::from(attempt)].epoch < redis.epoch)
        }),
        Situation::Abandoned => sometimes("a batch is abandoned", |_, state| !state.postgres.abandoned.is_empty()),
        Situation::AbandonedThenStored => sometimes("an abandoned batch comes after all", |_, state| {
            let consumed = |attempt| (state.topic.offset_of(attempt)).is_some_and(|at| at < state.postgres.consumed);
            state.postgres.abandoned.iter().any(consumed)
        }),
        Situation::Stale => sometimes("a record is stale", |_, state| !state.postgres.stale.is_empty()),
        Situation::Restocked => sometimes("a canceled coupon's slot is sold again", |protocol, state| {
            state.postgres.rows.len() > protocol.scope().quantity
        }),
        Situation::Repeated => sometimes("the same key is told SUCCESS again", |protocol, state| {
            protocol.attempts().any(|attempt| {
                state.attempts[usize::from(attempt)].stage == Stage::Success && state.topic.offset_of(attempt).is_none()
            })
        }),
        Situation::SecondAttempt => sometimes("a second attempt becomes the coupon", |protocol, state| {
            let second = |row| (protocol.claim(row).after).is_some_and(|first| protocol.same_request(first, row));
            state.postgres.rows.iter().any(second)
        }),
        Situation::Raised => sometimes("what was raised is issued", |protocol, state| {
            state.postgres.issued > protocol.scope().quantity
        }),
        Situation::Shrunk => sometimes("the quantity is shrunk", |protocol, state| {
            state.postgres.quantity < protocol.scope().quantity
        }),
        Situation::Overtaken => sometimes("a rebuild is overtaken", |_, state| {
            (state.rebuilders.iter())
                .any(|rebuilder| rebuilder.step != RebuildStep::Idle && rebuilder.epoch < state.redis.epoch)
        }),
        Situation::CameBack => sometimes("a coupon comes back from Kafka", |protocol, state| {
            let of_before = |row: u8| state.attempts[usize::from(row)].epoch < state.redis.epoch;
            state.faults < protocol.scope().faults && state.postgres.rows.iter().any(of_before)
        }),
    }
}
