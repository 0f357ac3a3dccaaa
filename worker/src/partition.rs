//! One partition's window: what was read and is not yet accounted for in `consumed`. Pure: no I/O, no clock.
//!
//! Records of many campaigns lie in one partition and are finished out of order, each campaign by a task of its own.
//! The low-water mark is the first offset that is not finished; `consumed` in Postgres follows it and never passes it:
//!
//! - An [`Advance`] is handed out to one transaction at a time, so that two tasks of this process never compare and
//!   set against each other. It goes at most to where the low-water mark will stand once the records *of that very
//!   transaction* are written, and commits with them. So `consumed` is never ahead of the rows.
//! - A task that finds the advance handed out carries none. What it finished is left for a later transaction, or for
//!   the one that writes offsets alone. So `consumed` may lag behind the rows; a record that is read twice for that is
//!   "already decided".
//! - An advance passes records that earlier transactions have decided. It carries their batches, and its transaction looks
//!   whether they are still there: Postgres may have been put back to a copy with the same `consumed` and without them.
//! - When the answer to a commit is lost, the advance is in doubt: the stored offset is read again, and is either the
//!   one before, the one after, or one that somebody else has written.

use std::collections::BTreeMap;

use campaign::postgres::{
    consumed::Life,
    persist::{Advance, DecidedBatch},
};

/// How much of a partition may be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Most records.
    pub records: usize,
    /// Most claims.
    pub claims: usize,
}

/// The window of one partition of ours.
#[derive(Debug)]
pub struct PartitionWindow {
    partition: i32,
    limits: WindowLimits,
    generation: u64,
    phase: Phase,
    life: Life,
    stored: i64,
    next: i64,
    in_flight: BTreeMap<i64, InFlight>,
    claims: usize,
    paused: bool,
    advancing: Option<i64>,
    doubt: Option<i64>,
    /// Decided at or past `stored`, by offset: an advance that passes them holds only while they are still there.
    decided: BTreeMap<i64, DecidedBatch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody has said where to begin.
    Held,
    /// Told to begin at this offset; what comes before the consumer confirms it is of before.
    Starting(i64),
    /// Records are taken.
    Running,
}

#[derive(Debug)]
struct InFlight {
    claims: usize,
    done: bool,
}

/// What becomes of a record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// It is in the window.
    Accepted {
        /// The window is full now: hold the partition back.
        pause: bool,
    },
    /// It is of before a seek: drop it.
    Unexpected,
}

/// What the stored offset means to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// As we thought.
    Unchanged,
    /// An advance of ours whose answer was lost has been committed.
    Committed,
    /// Somebody else moved it, or the topic was begun anew: begin again from there.
    Moved,
}

impl PartitionWindow {
    /// A partition that was just assigned. `generation` is new for every assignment and every start.
    pub fn new(partition: i32, limits: WindowLimits, generation: u64) -> Self {
        Self {
            partition,
            limits,
            generation,
            phase: Phase::Held,
            life: Life::default(),
            stored: 0,
            next: 0,
            in_flight: BTreeMap::new(),
            claims: 0,
            paused: false,
            advancing: None,
            doubt: None,
            decided: BTreeMap::new(),
        }
    }

    /// Begins (again) at the stored offset, in this life of the topic's offsets; everything in memory is forgotten.
    pub fn start(&mut self, stored: i64, life: Life, generation: u64) {
        let (partition, limits, paused) = (self.partition, self.limits, self.paused);
        *self = Self::new(partition, limits, generation);
        self.phase = Phase::Starting(stored);
        self.life = life;
        self.stored = stored;
        self.next = stored;
        self.paused = paused;
    }

    /// The consumer has moved to `offset`: what comes from here on is expected. Answers whether a pause of before has
    /// to be lifted.
    pub fn started(&mut self, offset: i64) -> bool {
        if self.phase != Phase::Starting(offset) {
            return false;
        }
        self.phase = Phase::Running;
        std::mem::take(&mut self.paused)
    }

    /// Which partition.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Which life of the window this is; work that was begun in another one no longer counts in it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// (generation, stored offset) if no transaction is moving it: what a later look at Postgres can be held against.
    pub fn at_rest(&self) -> Option<(u64, i64)> {
        (self.advancing.is_none() && self.phase != Phase::Held).then_some((self.generation, self.stored))
    }

    /// (generation, offset) of the next record that could come now.
    pub fn awaits(&self) -> Option<(u64, i64)> {
        (self.phase != Phase::Held && !self.paused).then_some((self.generation, self.next))
    }

    /// Whether it still waits for its start.
    pub fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// A record of `claims` claims was read at `offset`.
    pub fn receive(&mut self, offset: i64, claims: usize) -> Receipt {
        if self.phase != Phase::Running || offset < self.next {
            return Receipt::Unexpected;
        }
        self.next = offset + 1;
        self.in_flight.insert(offset, InFlight { claims, done: false });
        self.claims += claims;
        let pause = !self.paused && (self.in_flight.len() >= self.limits.records || self.claims >= self.limits.claims);
        self.paused |= pause;
        Receipt::Accepted { pause }
    }

    /// The first offset that is not finished.
    pub fn low_water(&self) -> i64 {
        self.low_water_with(&[])
    }

    fn low_water_with(&self, finished: &[i64]) -> i64 {
        self.in_flight
            .iter()
            .find(|(offset, flight)| !flight.done && finished.binary_search(offset).is_err())
            .map_or(self.next, |(&offset, _)| offset)
    }

    /// The advance that a transaction may carry that writes the records at `offsets` (ascending; may be empty). `None`
    /// if another transaction carries one or nothing would move.
    pub fn begin_advance(&mut self, offsets: &[i64]) -> Option<Advance> {
        if self.advancing.is_some() || self.doubt.is_some() || self.phase != Phase::Running {
            return None;
        }
        let to = self.low_water_with(offsets);
        if to <= self.stored {
            return None;
        }
        self.advancing = Some(to);
        Some(Advance {
            partition: self.partition,
            from: self.stored,
            to,
            life: self.life,
        })
    }

    /// What the advance that was handed out passes and earlier transactions have decided.
    pub fn rests_on(&self) -> impl Iterator<Item = &DecidedBatch> {
        let to = self.advancing.unwrap_or(self.stored);
        self.decided.range(..to).map(|(_, decided)| decided)
    }

    /// The transaction that carried the advance has committed.
    pub fn advanced(&mut self) {
        if let Some(to) = self.advancing.take() {
            self.store(to);
        }
    }

    fn store(&mut self, to: i64) {
        self.stored = to;
        self.decided = self.decided.split_off(&to);
    }

    /// A transaction has decided the record at `offset`.
    pub fn decided(&mut self, offset: i64, batch: DecidedBatch) {
        if offset >= self.stored {
            self.decided.insert(offset, batch);
        }
    }

    /// The transaction that carried the advance wrote nothing; `in_doubt`: or its answer was lost.
    pub fn advance_failed(&mut self, in_doubt: bool) {
        let to = self.advancing.take();
        if in_doubt {
            self.doubt = to;
        }
    }

    /// Whether the stored offset has to be read again before it can move.
    pub fn in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Holds what Postgres has stored against what we think. Only for a window that stayed [`Self::at_rest`] since
    /// before the read.
    pub fn reconcile(&mut self, stored: i64, life: Life) -> Standing {
        // The same offset of another log is another place.
        if life != self.life {
            return Standing::Moved;
        }
        if stored == self.stored {
            self.doubt = None;
            return Standing::Unchanged;
        }
        if self.doubt == Some(stored) {
            self.doubt = None;
            self.store(stored);
            return Standing::Committed;
        }
        Standing::Moved
    }

    /// The record at `offset` is finished: its outcome is in Postgres, or it is among the dead letters. Answers whether
    /// the partition may go on.
    pub fn finish(&mut self, offset: i64) -> bool {
        if let Some(flight) = self.in_flight.get_mut(&offset) {
            flight.done = true;
        }
        while let Some(first) = self.in_flight.first_entry()
            && first.get().done
        {
            self.claims -= first.remove().claims;
        }
        let drained = self.in_flight.len() <= self.limits.records / 2 && self.claims <= self.limits.claims / 2;
        drained && std::mem::take(&mut self.paused)
    }

    /// Whether there is something to store beyond what is stored.
    pub fn lags(&self) -> bool {
        self.phase == Phase::Running && self.low_water() > self.stored
    }

    /// What Postgres has stored, as far as we know.
    pub fn stored(&self) -> i64 {
        self.stored
    }

    /// Claims in the window.
    pub fn claims(&self) -> usize {
        self.claims
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use proptest::prelude::*;

    use super::*;

    const LIFE: Life = Life(7);
    const LIMITS: WindowLimits = WindowLimits { records: 4, claims: 20 };

    fn running(from: i64) -> PartitionWindow {
        let mut window = PartitionWindow::new(3, LIMITS, 1);
        window.start(from, LIFE, 2);
        window.started(from);
        window
    }

    fn advance(from: i64, to: i64) -> Option<Advance> {
        Some(Advance {
            partition: 3,
            from,
            to,
            life: LIFE,
        })
    }

    #[test]
    fn an_advance_goes_to_what_its_own_records_complete() {
        let mut window = running(10);
        for offset in 10..13 {
            window.receive(offset, 1);
        }
        assert_eq!(window.begin_advance(&[11]), None, "10 is not finished");
        window.finish(11);
        assert_eq!(window.begin_advance(&[10]), advance(10, 12));
        assert_eq!(window.begin_advance(&[12]), None, "another transaction carries one");
        window.finish(12);
        window.advanced();
        window.finish(10);
        assert_eq!(
            window.begin_advance(&[]),
            advance(12, 13),
            "left by the one that carried none"
        );
    }

    #[test]
    fn an_advance_rests_on_what_was_decided_before_it_and_not_accounted_for() {
        let batch = |number: u64| DecidedBatch {
            campaign: campaign::identity::CampaignId(uuid::Uuid::nil()),
            batch: format!("abcdefgh-{number}").parse().unwrap(),
        };
        let rests_on = |window: &PartitionWindow| window.rests_on().cloned().collect::<Vec<_>>();
        let mut window = running(10);
        for offset in 10..14 {
            window.receive(offset, 1);
        }
        for offset in [11, 13] {
            window.decided(offset, batch(offset as u64));
            window.finish(offset);
        }
        assert_eq!(window.begin_advance(&[10]), advance(10, 12));
        assert_eq!(rests_on(&window), [batch(11)], "13 is not passed yet");
        window.advanced();
        window.decided(10, batch(10));
        window.finish(10);
        assert_eq!(window.begin_advance(&[12]), advance(12, 14));
        assert_eq!(rests_on(&window), [batch(13)], "10 and 11 are accounted for");
    }

    #[test]
    fn offsets_that_do_not_exist_are_passed() {
        let mut window = running(10);
        window.receive(15, 1);
        assert_eq!(window.low_water(), 15);
        assert_eq!(window.begin_advance(&[15]), advance(10, 16));
    }

    #[test]
    fn records_of_before_a_seek_are_dropped() {
        let mut window = running(10);
        window.receive(10, 1);
        window.start(5, LIFE, 3);
        assert_eq!(window.receive(11, 1), Receipt::Unexpected, "it was in the channel");
        window.started(10);
        assert_eq!(window.receive(12, 1), Receipt::Unexpected, "that was another start");
        window.started(5);
        assert_eq!(window.receive(5, 1), Receipt::Accepted { pause: false });
        assert_eq!(window.receive(5, 1), Receipt::Unexpected);
    }

    #[test]
    fn a_full_window_holds_back_once_and_goes_on_once_half_of_it_is_done() {
        for (claims, full_at) in [(1, 3), (10, 1)] {
            let mut window = running(0);
            for offset in 0..full_at {
                assert_eq!(window.receive(offset, claims), Receipt::Accepted { pause: false });
            }
            assert_eq!(window.receive(full_at, claims), Receipt::Accepted { pause: true });
            assert_eq!(window.receive(full_at + 1, claims), Receipt::Accepted { pause: false });
            let resumed = (0..full_at + 2).filter(|&offset| window.finish(offset)).count();
            assert_eq!(resumed, 1);
        }
    }

    #[test]
    fn a_lost_answer_is_cleared_up_by_what_is_stored() {
        for (stored, standing) in [
            (10, Standing::Unchanged),
            (11, Standing::Committed),
            (12, Standing::Moved),
        ] {
            let mut window = running(10);
            window.receive(10, 1);
            window.begin_advance(&[10]).expect("moves");
            window.advance_failed(true);
            assert!(window.begin_advance(&[10]).is_none(), "not while in doubt");
            assert_eq!(window.reconcile(stored, LIFE), standing);
        }
    }

    #[test]
    fn the_same_offset_in_another_life_was_moved() {
        let mut window = running(0);
        for offset in 0..8 {
            window.receive(offset, 1);
        }
        assert_eq!(window.reconcile(0, LIFE), Standing::Unchanged);
        assert_eq!(window.reconcile(0, Life(8)), Standing::Moved);
        window.start(0, Life(8), 3);
        window.started(0);
        assert_eq!(
            window.receive(0, 1),
            Receipt::Accepted { pause: false },
            "of the new log"
        );
        let advance = window.begin_advance(&[0]).expect("moves");
        assert_eq!(
            (advance.to, advance.life),
            (1, Life(8)),
            "what was read of the old log is forgotten"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Receive(usize),
        Begin(Vec<usize>),
        Commit,
        Fail { committed: bool },
        Reconcile,
        Finish(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1usize..9).prop_map(Step::Receive),
            3 => prop::collection::vec(0usize..12, 0..4).prop_map(Step::Begin),
            2 => Just(Step::Commit),
            1 => any::<bool>().prop_map(|committed| Step::Fail { committed }),
            1 => Just(Step::Reconcile),
            3 => (0usize..12).prop_map(Step::Finish),
        ]
    }

    proptest! {
        /// Whatever the order of reads, commits, lost answers and finishes: what is stored is never ahead of the rows,
        /// never goes back, and is never compared against anything but itself.
        #[test]
        fn what_is_stored_never_runs_ahead(steps in prop::collection::vec(step(), 1..200)) {
            let mut window = running(0);
            let (mut next, mut database) = (0i64, 0i64);
            let mut rows = std::collections::BTreeSet::new();
            let mut carried: Option<(Option<Advance>, Vec<i64>)> = None;
            for step in steps {
                match step {
                    Step::Receive(claims) => {
                        window.receive(next, claims);
                        next += 1;
                    }
                    Step::Begin(picks) => {
                        if carried.is_none() && next > 0 {
                            let mut offsets: Vec<i64> =
                                picks.iter().map(|&pick| (next - 1 - pick as i64).max(0)).collect();
                            offsets.sort_unstable();
                            offsets.dedup();
                            carried = Some((window.begin_advance(&offsets), offsets));
                        }
                    }
                    Step::Commit => {
                        if let Some((advance, offsets)) = carried.take() {
                            rows.extend(offsets.iter().copied());
                            if let Some(advance) = advance {
                                prop_assert_eq!(advance.from, database);
                                prop_assert!(advance.to > advance.from);
                                database = advance.to;
                                window.advanced();
                            }
                            for offset in offsets {
                                window.finish(offset);
                            }
                        }
                    }
                    Step::Fail { committed } => {
                        if let Some((advance, offsets)) = carried.take() {
                            if committed {
                                rows.extend(offsets);
                            }
                            if let Some(advance) = advance {
                                if committed {
                                    database = advance.to;
                                }
                                window.advance_failed(true);
                            }
                        }
                    }
                    Step::Reconcile => {
                        prop_assert_ne!(window.reconcile(database, LIFE), Standing::Moved);
                        prop_assert!(!window.in_doubt());
                    }
                    Step::Finish(pick) => {
                        // Only what has its rows is finished.
                        if let Some(&offset) = rows.iter().nth(pick) {
                            window.finish(offset);
                        }
                    }
                }
                prop_assert!((0..database).all(|offset| rows.contains(&offset)), "ahead of the rows");
                let open: usize = window.in_flight.values().map(|flight| flight.claims).sum();
                prop_assert_eq!(window.claims(), open);
                prop_assert!(window.low_water() <= next);
            }
        }
    }
}
