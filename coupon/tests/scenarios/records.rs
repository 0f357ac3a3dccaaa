//! Records past a door: what an intake reserved before it died, and what comes too late.

use campaign::{
    identity::{BatchId, Instance, RequestId},
    kafka::producer::{Delivery, Outgoing, Producer},
    record::{ClaimRecord, RecordedClaim, VERSION},
    redis::state::ReserveAnswer,
};
use testkit::eventually::eventually;

use crate::chain::{Chain, LIMIT};

/// Reserves a slot for each of these users, as an intake does that dies before it publishes. Answers its record.
pub async fn reserve(chain: &Chain, users: &[&str]) -> ClaimRecord {
    let batch = Instance::random().batch(0);
    let claims: Vec<_> = users
        .iter()
        .map(|user| (user.parse().unwrap(), RequestId::fresh()))
        .collect();
    let answer = chain.state.reserve(&chain.campaign, &batch, &claims).await.unwrap();
    assert!(matches!(answer, ReserveAnswer::Judged(_)), "{answer:?}");
    let record = record_of(chain, batch).await;
    assert_eq!(record.claims.len(), users.len());
    record
}

/// The record of the oldest batch that is pending.
pub async fn pending(chain: &Chain) -> ClaimRecord {
    let batches = chain.state.expired_batches(&chain.campaign, 0, 1).await.unwrap();
    record_of(chain, batches.unwrap().remove(0)).await
}

async fn record_of(chain: &Chain, batch: BatchId) -> ClaimRecord {
    let numbers = chain.numbers().await;
    let claims = chain
        .state
        .claims_of(&chain.campaign, std::slice::from_ref(&batch))
        .await;
    ClaimRecord {
        v: VERSION,
        campaign: chain.campaign.clone(),
        id: numbers.campaign,
        epoch: numbers.epoch,
        batch,
        reserved_at: numbers.now_ms,
        claims: claims
            .unwrap()
            .unwrap()
            .into_iter()
            .map(|(user_id, request_id, reservation)| RecordedClaim {
                i: reservation.index,
                user_id,
                request_id,
            })
            .collect(),
    }
}

/// Publishes a record, however old it is.
pub async fn publish(chain: &Chain, record: &ClaimRecord) {
    let producer = Producer::start(&chain.on.kafka, LIMIT).unwrap();
    let topic = chain.on.naming.requests_topic();
    let value = record.encode().unwrap();
    let sent = producer.send(&Outgoing {
        topic: &topic,
        value: &value,
        ..Outgoing::default()
    });
    assert!(matches!(sent.await.unwrap(), Delivery::Acknowledged { .. }));
}

/// Waits until a worker has consumed everything that is in the claims' topic now.
pub async fn consumed(chain: &Chain) {
    let topic = chain.on.naming.requests_topic();
    let reader = &chain.aligner.rebuilder.reader;
    let ends = eventually(LIMIT, "the end offsets", async || reader.watermarks(&topic).await.ok()).await;
    eventually(LIMIT, "everything is consumed", async || {
        let consumed = chain.database.consumed(&topic).await.ok()?;
        let behind = |(id, marks): (_, &campaign::kafka::offsets::Watermarks)| {
            consumed.get(id).copied().unwrap_or(0) < marks.high
        };
        (!ends.iter().any(behind)).then_some(())
    })
    .await;
}

/// Waits until what is reserved now is older than a publish may take.
pub async fn grown_old(chain: &Chain) {
    let older_than = chain.on.installation.settle_after().as_millis() as i64;
    eventually(LIMIT, "the batches are old", async || {
        let expired = chain.state.expired_batches(&chain.campaign, older_than, 1).await;
        !expired.unwrap().unwrap().is_empty()
    })
    .await;
}
