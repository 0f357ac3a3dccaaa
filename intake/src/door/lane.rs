//! Where the claims of one campaign wait for a reserve call. At most two calls are under way; what comes meanwhile
//! gathers and goes with the next one. No timer: a lone claim does not wait.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use campaign::{
    identity::{RequestId, UserId},
    record::MAX_CLAIMS,
};
use tokio::sync::oneshot;

use super::decision::Answer;

/// Reserve calls of one campaign and process at the same time: one is on the wire while Redis works on the other.
pub const MAX_CALLS: usize = 2;

/// A claim that waits.
pub struct Waiting {
    /// Who.
    pub user: UserId,
    /// Which request.
    pub request: RequestId,
    /// The Kafka gate is shut and this claim tries whether it can be opened: it goes alone.
    pub probe: bool,
    /// Who asked. Nobody may be listening any more; the work goes on all the same.
    pub reply: oneshot::Sender<Answer>,
}

/// What became of a claim that was given to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It waits; a call that is under way takes it along afterwards.
    Waits,
    /// It waits, and a place for a call is taken: the caller starts one.
    StartCall,
    /// There are too many: it was not taken.
    Full,
}

/// One campaign's queue.
#[derive(Default)]
pub struct Lane {
    queue: Mutex<Queue>,
    rebuilding: AtomicBool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    calls: usize,
    in_flight: usize,
}

impl Lane {
    /// Takes a claim in unless `limit` are in flight.
    pub fn push(&self, claim: Waiting, limit: usize) -> Pushed {
        let mut queue = self.lock();
        if queue.in_flight >= limit {
            return Pushed::Full;
        }
        queue.in_flight += 1;
        queue.waiting.push_back(claim);
        if queue.calls < MAX_CALLS {
            queue.calls += 1;
            Pushed::StartCall
        } else {
            Pushed::Waits
        }
    }

    /// The next claims for a call, in the order they came, at most [`MAX_CLAIMS`]. Empty: the place for a call is given
    /// back (under the same lock: a claim that comes right after starts a new one).
    pub fn take(&self) -> Vec<Waiting> {
        let mut queue = self.lock();
        let count = queue.waiting.len().min(MAX_CLAIMS);
        if count == 0 {
            queue.calls -= 1;
            return Vec::new();
        }
        queue.waiting.drain(..count).collect()
    }

    /// A call ended without [`Lane::take`] having answered empty: its task died.
    pub fn abandon_call(&self) {
        let mut queue = self.lock();
        queue.calls = queue.calls.saturating_sub(1);
    }

    /// `count` claims are answered.
    pub fn finished(&self, count: usize) {
        let mut queue = self.lock();
        queue.in_flight = queue.in_flight.saturating_sub(count);
    }

    /// Claims that wait for a call.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Marks that a rebuild is under way here. False: one is already.
    pub fn begin_rebuild(&self) -> bool {
        !self.rebuilding.swap(true, Ordering::AcqRel)
    }

    /// The rebuild has ended, however.
    pub fn end_rebuild(&self) {
        self.rebuilding.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing in here panics between two writes that belong together.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn claim(user: usize) -> Waiting {
        Waiting {
            user: format!("u{user}").parse().unwrap(),
            request: RequestId::fresh(),
            probe: false,
            reply: oneshot::channel().0,
        }
    }

    #[test]
    fn the_first_two_claims_start_calls_and_the_others_gather() {
        let lane = Lane::default();
        assert_eq!(lane.push(claim(0), 1_000), Pushed::StartCall);
        assert_eq!(lane.take().len(), 1);
        assert_eq!(lane.push(claim(1), 1_000), Pushed::StartCall);
        assert_eq!(lane.take().len(), 1);
        for user in 2..302 {
            assert_eq!(lane.push(claim(user), 1_000), Pushed::Waits);
        }
        let batch = lane.take();
        assert_eq!(batch.len(), MAX_CLAIMS);
        assert_eq!(batch[0].user.as_str(), "u2");
        assert_eq!(lane.take().len(), 300 - MAX_CLAIMS);
    }

    #[test]
    fn an_empty_take_gives_the_place_back() {
        let lane = Lane::default();
        assert_eq!(lane.push(claim(0), 10), Pushed::StartCall);
        assert_eq!(lane.take().len(), 1);
        assert!(lane.take().is_empty());
        assert_eq!(lane.push(claim(1), 10), Pushed::StartCall);
        assert_eq!(lane.push(claim(2), 10), Pushed::StartCall);
        assert_eq!(lane.push(claim(3), 10), Pushed::Waits);
    }

    #[test]
    fn claims_count_until_they_are_answered() {
        let lane = Lane::default();
        lane.push(claim(0), 2);
        lane.push(claim(1), 2);
        assert_eq!(lane.push(claim(2), 2), Pushed::Full);
        lane.take();
        assert_eq!(lane.push(claim(2), 2), Pushed::Full, "taken, but not answered");
        lane.finished(1);
        assert_ne!(lane.push(claim(2), 2), Pushed::Full);
    }

    #[test]
    fn one_rebuild_at_a_time() {
        let lane = Lane::default();
        assert!(lane.begin_rebuild());
        assert!(!lane.begin_rebuild());
        lane.end_rebuild();
        assert!(lane.begin_rebuild());
    }
}
