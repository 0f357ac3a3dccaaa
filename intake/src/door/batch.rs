//! One reserve call and its record.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use campaign::{
    identity::{BatchId, RequestId, Reservation, UserId},
    kafka::producer::{Delivery, Outgoing},
    name::CampaignName,
    record::{ClaimRecord, RecordedClaim, VERSION},
    redis::state::{ReserveAnswer, Reserved, Transition},
};
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::{
    Door, InFlight,
    decision::{self, Answer, Fate},
    lane::Waiting,
    rebuild,
};
use crate::{campaigns::LiveCampaign, metrics::PublishResult};

type Reply = oneshot::Sender<Answer>;

/// Makes reserve calls, one after the other, until no claim waits.
pub(super) async fn serve(door: Arc<Door>, campaign: Arc<LiveCampaign>) {
    let mut place = CallPlace {
        campaign: &campaign,
        held: true,
    };
    loop {
        // Requests that have come in by now claim first, so that they share this call and its record: a record costs
        // Kafka about the same with one claim as with a hundred. Where nothing is ready this takes no time.
        tokio::task::yield_now().await;
        let waiting = campaign.lane.take().await;
        if waiting.is_empty() {
            place.held = false;
            return;
        }
        let in_flight = InFlight {
            door: door.clone(),
            campaign: campaign.clone(),
            count: waiting.len(),
        };
        if door.kafka_shut() {
            shut(&door, &campaign, waiting, in_flight).await;
        } else {
            // The gate may have opened since a probe was let in: then it goes with the others.
            let probe = waiting.iter().any(|claim| claim.probe).then(|| Probe::begin(&door));
            call(&door, &campaign, waiting, in_flight, probe).await;
        }
    }
}

/// Gives the place for a call back where the task dies.
struct CallPlace<'a> {
    campaign: &'a LiveCampaign,
    held: bool,
}

impl Drop for CallPlace<'_> {
    fn drop(&mut self) {
        if self.held {
            self.campaign.lane.abandon_call();
        }
    }
}

/// The gate was shut while these waited: only the probe goes on, alone.
async fn shut(door: &Arc<Door>, campaign: &Arc<LiveCampaign>, waiting: Vec<Waiting>, mut in_flight: InFlight) {
    let mut probe = None;
    let mut answered = 0;
    for claim in waiting {
        if claim.probe && probe.is_none() {
            probe = Some(claim);
        } else {
            door.answer(claim.reply, Answer::KafkaError);
            answered += 1;
        }
    }
    in_flight.answered(answered);
    if let Some(claim) = probe {
        let probe = Probe::begin(door);
        if door.parts.topic.is_shortened() {
            // It was let in before that was found, and would tell nothing.
            door.answer(claim.reply, Answer::KafkaError);
        } else {
            call(door, campaign, vec![claim], in_flight, Some(probe)).await;
        }
    }
}

/// The probe's turn. It ends when this is dropped, however the claim went.
struct Probe {
    door: Arc<Door>,
    began: Instant,
    /// A record was tried, or may have taken a slot: the next one waits its period.
    spent: bool,
}

impl Probe {
    fn begin(door: &Arc<Door>) -> Self {
        Self {
            door: door.clone(),
            began: Instant::now(),
            spent: false,
        }
    }
}

/// The probe, if there is one, may have taken a slot.
fn spend(probe: &mut Option<Probe>) {
    if let Some(probe) = probe {
        probe.spent = true;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.spent {
            self.door.gate.probe_ended(self.began);
        } else {
            self.door.gate.probe_told_nothing();
        }
    }
}

/// One reserve call. Its record is published by a task of its own: the next call does not wait for Kafka.
async fn call(
    door: &Arc<Door>,
    campaign: &Arc<LiveCampaign>,
    waiting: Vec<Waiting>,
    in_flight: InFlight,
    mut probe: Option<Probe>,
) {
    let metrics = &door.parts.metrics;
    let batch = door.instance.batch(door.batches.fetch_add(1, Ordering::Relaxed));
    let mut claims = Vec::with_capacity(waiting.len());
    let mut replies = Vec::with_capacity(waiting.len());
    for claim in waiting {
        claims.push((claim.user, claim.request));
        replies.push(claim.reply);
    }

    // Everything is measured from here: a rebuild waits this long for what may still become a SUCCESS.
    let started = Instant::now();
    let reserved = door.parts.state.reserve(&campaign.row.name, &batch, &claims).await;
    metrics.reserve_size.observe(claims.len() as f64);
    metrics.reserve_seconds.observe(started.elapsed().as_secs_f64());

    match reserved {
        Ok(ReserveAnswer::Judged(reserved)) if reserved.outcomes.len() == claims.len() => {
            let call = Call {
                door: door.clone(),
                campaign: campaign.clone(),
                batch,
                started,
                in_flight,
                probe,
            };
            judged(call, reserved, claims, replies);
        }
        Ok(ReserveAnswer::Judged(reserved)) => {
            spend(&mut probe);
            tracing::error!(
                campaign = %campaign.row.name, %batch, claims = claims.len(), outcomes = reserved.outcomes.len(),
                "a reserve call answered another number of claims than it was asked; its claims are unknown"
            );
            for ((_, request), reply) in claims.into_iter().zip(replies) {
                door.answer(reply, Answer::StateUnknown(request));
            }
        }
        Ok(ReserveAnswer::Refused(refusal)) => {
            // The window as it is now: this task may have begun under an older snapshot.
            let closes_at = door
                .parts
                .campaigns
                .get(&campaign.row.name.to_string())
                .map_or(campaign.row.terms.closes_at, |now| now.row.terms.closes_at);
            let refused = decision::refused(refusal, closes_at, Timestamp::now());
            if refused.rebuild {
                rebuild::start(door, campaign);
            }
            for reply in replies {
                door.answer(reply, refused.answer);
            }
        }
        Err(error) => {
            spend(&mut probe);
            tracing::warn!(campaign = %campaign.row.name, %batch, claims = claims.len(), %error, "a reserve call failed");
            for ((_, request), reply) in claims.into_iter().zip(replies) {
                door.answer(reply, decision::reserve_failed(&error, request));
            }
        }
    }
}

/// A reserve call that was answered.
struct Call {
    door: Arc<Door>,
    campaign: Arc<LiveCampaign>,
    batch: BatchId,
    started: Instant,
    in_flight: InFlight,
    probe: Option<Probe>,
}

/// Answers what needs no record and publishes the rest.
fn judged(mut call: Call, reserved: Reserved, claims: Vec<(UserId, RequestId)>, replies: Vec<Reply>) {
    let ours = reserved.campaign == call.campaign.row.id;
    let mut recorded = Vec::with_capacity(claims.len());
    let mut awaiting = Vec::with_capacity(claims.len());
    let mut answered = 0;
    for (i, (((user_id, request_id), reply), outcome)) in
        (0_u16..).zip(claims.into_iter().zip(replies).zip(reserved.outcomes))
    {
        match decision::at_once(outcome, request_id) {
            Some(_) if !ours => call.door.answer(reply, Answer::Rebuilding),
            Some(answer) => call.door.answer(reply, answer),
            None => {
                recorded.push(RecordedClaim { i, user_id, request_id });
                awaiting.push(reply);
                continue;
            }
        }
        answered += 1;
    }
    call.in_flight.answered(answered);
    let record = ClaimRecord {
        v: VERSION,
        campaign: call.campaign.row.name.clone(),
        id: reserved.campaign,
        epoch: reserved.epoch,
        batch: call.batch.clone(),
        reserved_at: reserved.at_ms,
        claims: recorded,
    };
    if !record.claims.is_empty() {
        spend(&mut call.probe);
    }
    let door = call.door.clone();
    if !ours {
        door.tasks.spawn(foreign(call, record, awaiting));
    } else if !record.claims.is_empty() {
        door.tasks.spawn(publish(call, record, awaiting));
    }
}

/// The state belongs to another campaign of that name: one of the two is out of date. Nothing may be published.
async fn foreign(call: Call, record: ClaimRecord, awaiting: Vec<Reply>) {
    let door = &call.door;
    tracing::warn!(
        campaign = %record.campaign, state = %record.id, known = %call.campaign.row.id,
        "the state in Redis belongs to another campaign of that name"
    );
    give_back(door, &record).await;
    door.parts.campaigns.refresh_if_due().await;
    match door.parts.campaigns.get(&record.campaign.to_string()) {
        Some(now) if now.row.id != record.id => rebuild::start(door, &now),
        _ => {}
    }
    for reply in awaiting {
        door.answer(reply, Answer::Rebuilding);
    }
}

/// Publishes a record and answers its claims.
async fn publish(call: Call, record: ClaimRecord, awaiting: Vec<Reply>) {
    let door = &call.door;
    let (result, reason) = send(door, &record, call.started).await;
    door.parts.metrics.published(result);
    match decision::kafka_takes_records(result) {
        Some(true) if door.gate.open() => tracing::info!("Kafka takes records again: claims are reserved"),
        Some(false) => {
            tracing::warn!(
                campaign = %record.campaign, batch = %record.batch, claims = record.claims.len(), ?result, reason,
                "a record was not acknowledged in time"
            );
            if door.gate.shut(Instant::now()) {
                tracing::warn!("Kafka does not take records: claims are refused, one a second tries");
            }
        }
        Some(true) | None => {}
    }
    let fate = decision::fate(result);
    if fate == Fate::GivenBack {
        give_back(door, &record).await;
    }
    for (claim, reply) in record.claims.iter().zip(awaiting) {
        door.answer(reply, fate.answer(claim.request_id));
    }
    drop(call.probe);
    drop(call.in_flight);
}

async fn send(door: &Door, record: &ClaimRecord, started: Instant) -> (PublishResult, String) {
    let timeout = door.parts.publish_timeout;
    let value = match record.encode() {
        Ok(value) => value,
        Err(error) => return (PublishResult::NotSent, error.to_string()),
    };
    if !decision::may_publish(started.elapsed(), timeout) {
        return (PublishResult::NotSent, "the publish timeout had passed".to_owned());
    }
    let topic = &door.parts.topic;
    // Before the send: from then on every offset that the topic gives lies past these.
    let consumed = topic.consumed();
    let report = door.parts.producer.send(&Outgoing {
        topic: topic.name(),
        key: None,
        value: &value,
        headers: Vec::new(),
    });
    // The client's own limit runs from the send, ours from before the reserve: its report comes a little later than
    // our limit, and may still say that nothing was stored.
    let delivery = match tokio::time::timeout(timeout * 2, report).await {
        Ok(Ok(delivery)) => delivery,
        Ok(Err(_)) => Delivery::Unknown("the producer ended without a report".to_owned()),
        Err(_) => Delivery::Unknown("no report in twice the publish timeout".to_owned()),
    };
    let elapsed = started.elapsed();
    if let Some(found) = decision::below_consumed(&delivery, &consumed) {
        topic.found_shortened(found);
    }
    let result = match decision::published(&delivery, elapsed, timeout) {
        // Also where another record has proven it meanwhile: whether this one will be read is not ours to say.
        PublishResult::Acknowledged if topic.is_shortened() => PublishResult::Unreadable,
        result => result,
    };
    if result == PublishResult::Acknowledged {
        door.parts.metrics.acknowledge_seconds.observe(elapsed.as_secs_f64());
    }
    let reason = match delivery {
        Delivery::Acknowledged { .. } => String::new(),
        Delivery::NotStored(reason) | Delivery::Unknown(reason) => reason,
    };
    (result, reason)
}

/// Gives the slots of a record back that surely is not stored. Whatever fails here is left to the sweeper.
async fn give_back(door: &Door, record: &ClaimRecord) {
    if record.claims.is_empty() {
        return;
    }
    let held: Vec<(UserId, Reservation)> = record
        .claims
        .iter()
        .map(|claim| (claim.user_id.clone(), record.reservation(claim)))
        .collect();
    let (name, batch) = (&record.campaign, &record.batch);
    match release_then_settle(door, name, batch, &held).await {
        Ok(released) => {
            door.parts.metrics.released.inc_by(released);
        }
        Err(reason) => {
            tracing::warn!(campaign = %name, %batch, reason, "claims are not given back now, the sweeper does it");
        }
    }
}

/// In this order: settled first, a crash between the two would leave the slots taken for ever.
async fn release_then_settle(
    door: &Door,
    campaign: &CampaignName,
    batch: &BatchId,
    held: &[(UserId, Reservation)],
) -> Result<u64, String> {
    let state = &door.parts.state;
    match state.release(campaign, held).await {
        Ok(Transition::Done(released)) => {
            state
                .settle(campaign, std::slice::from_ref(batch))
                .await
                .map_err(|error| error.to_string())?;
            Ok(released)
        }
        Ok(Transition::Rebuilding) => Err("the state is being rebuilt".to_owned()),
        Ok(Transition::NotInitialized) => Err("the state is missing".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
