//! The path of a claim: queue, reserve, publish, answer.
//!
//! Claims of one campaign gather in its `lane` while at most two reserve calls are under way. What a call reserved is
//! one record; the next call never waits for its acknowledgement. The work of a claim goes on when its client hangs
//! up: the tasks here belong to the door, not to a connection.

pub mod decision;
pub mod gate;
pub mod lane;
pub mod topic;

mod batch;
mod rebuild;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use campaign::{
    identity::{Instance, RequestId, UserId},
    kafka::producer::Producer,
    rebuild::Rebuilder,
    redis::state::{Marker, MarkerAnswer, StateStore},
};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    decision::Answer,
    gate::{Admission, Gate},
    lane::{Pushed, Waiting},
    topic::ClaimsTopic,
};
use crate::{
    campaigns::{Campaigns, LiveCampaign},
    metrics::{Levels, Metrics},
};

/// Most looks at a time whether a repeated request holds a slot, while Kafka does not take records. They are beside the
/// claims in flight: a Redis that is slow must not pile them up.
const LOOKS_AT_ONCE: usize = 256;

/// What a door works with.
pub struct DoorParts {
    /// Reserves and gives back.
    pub state: StateStore,
    /// Takes the records.
    pub producer: Producer,
    /// `coupon.issue.requests` of the installation.
    pub topic: Arc<ClaimsTopic>,
    /// Builds states that are missing.
    pub rebuilder: Rebuilder,
    /// What is known of the campaigns.
    pub campaigns: Arc<Campaigns>,
    /// Where it is counted.
    pub metrics: Arc<Metrics>,
    /// From just before the reserve call to the acknowledgement.
    pub publish_timeout: Duration,
    /// Most claims in flight in this process.
    pub max_in_flight: usize,
    /// Most claims in flight of one campaign.
    pub max_in_flight_per_campaign: usize,
    /// Stops rebuilds.
    pub shutdown: CancellationToken,
}

/// The door of one process.
pub struct Door {
    parts: DoorParts,
    instance: Instance,
    batches: AtomicU64,
    gate: Gate,
    in_flight: AtomicUsize,
    looks: Semaphore,
    tasks: TaskTracker,
    rebuilds: TaskTracker,
}

impl Door {
    /// A door with an instance name of its own.
    pub fn new(parts: DoorParts) -> Arc<Self> {
        Arc::new(Self {
            // The delivery report is awaited for at most twice the publish timeout.
            gate: Gate::new(parts.publish_timeout * 3),
            parts,
            instance: Instance::random(),
            batches: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            looks: Semaphore::new(LOOKS_AT_ONCE),
            tasks: TaskTracker::new(),
            rebuilds: TaskTracker::new(),
        })
    }

    /// Takes a claim in and waits for its answer. Dropping this future takes nothing back. `repeatable`: the request has
    /// a key, so this may be its second attempt.
    pub async fn claim(
        self: &Arc<Self>,
        campaign: &Arc<LiveCampaign>,
        user: UserId,
        request: RequestId,
        repeatable: bool,
    ) -> Answer {
        let repeating = repeatable.then(|| user.clone());
        let answer = match self.enqueue(campaign, user, request) {
            // A task died: a defect, but what it had done may stand.
            Ok(answer) => answer.await.unwrap_or(Answer::StateUnknown(request)),
            Err(refused) => refused,
        };
        // In a box: it is rare, and would be part of the future of every claim.
        let answer = match (answer, repeating) {
            (Answer::KafkaError, Some(user)) if Box::pin(self.holds(campaign, &user, request)).await => {
                Answer::Pending(request)
            }
            (answer, _) => answer,
        };
        self.parts.metrics.answered(answer.kind());
        answer
    }

    /// Whether an earlier attempt of this very request holds a slot. It needs no Kafka to be told so. False also where too
    /// many ask: the answer is then the one without a look.
    async fn holds(&self, campaign: &LiveCampaign, user: &UserId, request: RequestId) -> bool {
        let Ok(_look) = self.looks.try_acquire() else {
            return false;
        };
        let marker = self.parts.state.marker(&campaign.row.name, user).await;
        matches!(marker, Ok(MarkerAnswer::Present(Some(Marker::Holds(holder, _)))) if holder == request)
    }

    fn enqueue(
        self: &Arc<Self>,
        campaign: &Arc<LiveCampaign>,
        user: UserId,
        request: RequestId,
    ) -> Result<oneshot::Receiver<Answer>, Answer> {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.parts.max_in_flight {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(Answer::Overloaded);
        }
        let probe = match self.admit() {
            Admission::Open => false,
            Admission::Probe => true,
            Admission::Shut => {
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
                return Err(Answer::KafkaError);
            }
        };
        let (reply, answer) = oneshot::channel();
        let claim = Waiting {
            user,
            request,
            probe,
            reply,
        };
        match campaign.lane.push(claim, self.parts.max_in_flight_per_campaign) {
            Pushed::Waits => {}
            Pushed::StartCall => {
                self.tasks.spawn(batch::serve(self.clone(), campaign.clone()));
            }
            Pushed::Full => {
                self.in_flight.fetch_sub(1, Ordering::Relaxed);
                if probe {
                    self.gate.probe_told_nothing();
                }
                return Err(Answer::Overloaded);
            }
        }
        Ok(answer)
    }

    fn admit(&self) -> Admission {
        // No probe either: that a record is acknowledged proves nothing here.
        if self.parts.topic.is_shortened() {
            return Admission::Shut;
        }
        self.gate.admit(self.parts.producer.brokers_up(), Instant::now)
    }

    /// Numbers for the metrics.
    pub fn levels(&self) -> Levels {
        Levels {
            in_flight: self.in_flight.load(Ordering::Relaxed),
            waiting: self.parts.campaigns.waiting(),
            kafka_open: !self.kafka_shut(),
            topic_shortened: self.parts.topic.is_shortened(),
            producer_renewals: self.parts.producer.renewals(),
        }
    }

    /// Waits until every claim that was taken in has its answer. Nothing may come any more.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.rebuilds.close();
        self.rebuilds.wait().await;
    }

    fn kafka_shut(&self) -> bool {
        self.parts.topic.is_shortened() || self.gate.is_shut(self.parts.producer.brokers_up())
    }

    /// Answers a claim. Nobody may be listening: what was decided holds all the same, and is counted here; where
    /// somebody listens, [`Door::claim`] counts what he is told.
    fn answer(&self, reply: oneshot::Sender<Answer>, answer: Answer) {
        if let Err(answer) = reply.send(answer) {
            self.parts.metrics.answered(answer.kind());
        }
    }
}

/// Claims that are in flight. They count until this is dropped or told that some are answered, also where a task dies.
struct InFlight {
    door: Arc<Door>,
    campaign: Arc<LiveCampaign>,
    count: usize,
}

impl InFlight {
    fn answered(&mut self, count: usize) {
        if count > 0 {
            self.count -= count;
            self.door.in_flight.fetch_sub(count, Ordering::Relaxed);
            self.campaign.lane.finished(count);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.answered(self.count);
    }
}
