//! Where the claims of one campaign wait for a reserve call. At most two calls are under way; what comes meanwhile
//! gathers and goes with the next one. A lone claim does not wait. While many are in flight a call waits until it has
//! its share of them, for a short time at most: a record costs Kafka about the same with one claim as with a hundred.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use campaign::{
    identity::{RequestId, UserId},
    record::MAX_CLAIMS,
};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::decision::Answer;

/// Reserve calls of one campaign and process at the same time: one is on the wire while Redis works on the other.
pub const MAX_CALLS: usize = 2;

/// A call goes at once with this part of the claims in flight. Smaller ones would be many, and larger ones would leave
/// Redis, Kafka and the door waiting for each other.
const SHARE: usize = 8;

/// A call waits no longer than this for its share.
const PATIENCE: Duration = Duration::from_millis(2);

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
    /// Tells the call that waits for its share that it is there.
    share_is_there: Notify,
    rebuilding: AtomicBool,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    calls: usize,
    in_flight: usize,
    /// One of the calls waits for its share.
    gathering: bool,
}

/// What a place for a call does next.
enum Step {
    /// It calls with these.
    Call(Vec<Waiting>),
    /// It waits for its share.
    Gather,
    /// Nothing waits, or another place gathers it: this one was given back.
    Done,
}

impl Queue {
    fn has_share(&self) -> bool {
        self.waiting.len() >= MAX_CLAIMS || self.waiting.len() * SHARE >= self.in_flight
    }

    /// `gatherer`: this place has waited for its share. `impatient`: it waits no longer.
    fn step(&mut self, gatherer: bool, impatient: bool) -> Step {
        if self.waiting.is_empty() || (self.gathering && !gatherer) {
            self.gathering &= !gatherer;
            self.calls -= 1;
            return Step::Done;
        }
        self.gathering = !impatient && !self.has_share();
        if self.gathering {
            return Step::Gather;
        }
        let count = self.waiting.len().min(MAX_CLAIMS);
        Step::Call(self.waiting.drain(..count).collect())
    }
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
        if queue.gathering {
            self.tell(&queue);
            Pushed::Waits
        } else if queue.calls < MAX_CALLS {
            queue.calls += 1;
            Pushed::StartCall
        } else {
            Pushed::Waits
        }
    }

    /// The next claims for a call, in the order they came, at most [`MAX_CLAIMS`]. Empty: the place for a call is given
    /// back (under the same lock: a claim that comes right after starts a new one).
    pub async fn take(&self) -> Vec<Waiting> {
        let until = Instant::now() + PATIENCE;
        let mut gatherer = false;
        loop {
            let step = self.lock().step(gatherer, Instant::now() >= until);
            match step {
                Step::Call(claims) => return claims,
                Step::Done => return Vec::new(),
                Step::Gather => {
                    gatherer = true;
                    let _ = tokio::time::timeout_at(until, self.share_is_there.notified()).await;
                }
            }
        }
    }

    /// A call ended without [`Lane::take`] having answered empty: its task died.
    pub fn abandon_call(&self) {
        let mut queue = self.lock();
        queue.calls = queue.calls.saturating_sub(1);
        // It may be the one that gathered.
        queue.gathering = false;
    }

    /// `count` claims are answered.
    pub fn finished(&self, count: usize) {
        let mut queue = self.lock();
        queue.in_flight = queue.in_flight.saturating_sub(count);
        self.tell(&queue);
    }

    fn tell(&self, queue: &Queue) {
        if queue.gathering && queue.has_share() {
            self.share_is_there.notify_one();
        }
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

    /// What a place that begins to look finds.
    fn step(lane: &Lane) -> Step {
        lane.lock().step(false, false)
    }

    fn called(step: Step) -> Vec<Waiting> {
        match step {
            Step::Call(claims) => claims,
            Step::Gather => panic!("it waits for its share"),
            Step::Done => panic!("nothing is there for it"),
        }
    }

    #[test]
    fn lone_claims_go_at_once_and_others_gather_while_two_calls_are_under_way() {
        let lane = Lane::default();
        for user in 0..MAX_CALLS {
            assert_eq!(lane.push(claim(user), 1_000), Pushed::StartCall);
            assert_eq!(called(step(&lane)).len(), 1);
        }
        for user in 2..302 {
            assert_eq!(lane.push(claim(user), 1_000), Pushed::Waits);
        }
        let batch = called(step(&lane));
        assert_eq!(batch.len(), MAX_CLAIMS);
        assert_eq!(batch[0].user.as_str(), "u2");
    }

    #[test]
    fn a_call_waits_for_its_share_of_what_is_in_flight() {
        let lane = Lane::default();
        for user in 0..100 {
            lane.push(claim(user), 1_000);
        }
        assert_eq!(called(step(&lane)).len(), 100);
        for user in 100..112 {
            lane.push(claim(user), 1_000);
        }
        assert!(matches!(step(&lane), Step::Gather), "12 of 112");
        assert!(matches!(step(&lane), Step::Done), "another place gathers them");
        assert_eq!(lane.push(claim(112), 1_000), Pushed::Waits, "and they start no call");
        assert!(matches!(lane.lock().step(true, false), Step::Gather), "13 of 113");
        lane.finished(100);
        assert_eq!(
            called(lane.lock().step(true, false)).len(),
            13,
            "all of what is in flight"
        );
    }

    #[test]
    fn a_call_does_not_wait_for_its_share_for_ever() {
        let lane = Lane::default();
        for user in 0..100 {
            lane.push(claim(user), 1_000);
        }
        called(step(&lane));
        lane.push(claim(100), 1_000);
        assert!(matches!(step(&lane), Step::Gather));
        assert_eq!(called(lane.lock().step(true, true)).len(), 1);
    }

    #[tokio::test]
    async fn an_acknowledgement_ends_the_wait() {
        let lane = Lane::default();
        for user in 0..100 {
            lane.push(claim(user), 1_000);
        }
        assert_eq!(lane.take().await.len(), 100);
        lane.push(claim(100), 1_000);
        let (batch, ()) = tokio::join!(lane.take(), async { lane.finished(99) });
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn a_place_without_claims_is_given_back() {
        let lane = Lane::default();
        assert_eq!(lane.push(claim(0), 10), Pushed::StartCall);
        called(step(&lane));
        assert!(matches!(step(&lane), Step::Done));
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
        called(step(&lane));
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
