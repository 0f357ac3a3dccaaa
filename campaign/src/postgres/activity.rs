//! Table `coupon_activity`: the projection of `coupon.lifecycle`.

use super::{
    consumed::move_consumed,
    database::{Database, DatabaseError, Session, bounded, from_micros},
    persist::{Advance, Halt, PersistError, in_one_transaction},
};
use crate::event::LifecycleEvent;

impl Database {
    /// Inserts events (repeats are dropped by their id) and moves `consumed`, in one transaction. Answers how many were new.
    pub async fn project(
        &self,
        topic: &str,
        events: &[LifecycleEvent],
        advances: &[Advance],
    ) -> Result<u64, PersistError> {
        in_one_transaction!(self, "project events", |session| {
            match insert_activity(session, events).await {
                Ok(new) => move_consumed(session, topic, advances).await.map(|()| new),
                Err(error) => Err(Halt::Sql(error)),
            }
        })
    }
}

async fn insert_activity(session: &mut Session, events: &[LifecycleEvent]) -> Result<u64, sqlx::Error> {
    if events.is_empty() {
        return Ok(0);
    }
    // In one order, so that two projections of the same events cannot wait for each other in a circle.
    let mut events: Vec<&LifecycleEvent> = events.iter().collect();
    events.sort_unstable_by_key(|event| event.event_id);
    let done = sqlx::query(concat!(
        "INSERT INTO coupon_activity (event_id, type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
         SELECT event_id, type, coupon_id, campaign_id, campaign, user_id, ",
        from_micros!("occurred_at"),
        " FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bigint[]) \
              AS e(event_id, type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
         ON CONFLICT DO NOTHING"
    ))
    .bind(events.iter().map(|event| event.event_id).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.event_type.as_str()).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.coupon_id.0).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.campaign_id.0).collect::<Vec<_>>())
    .bind(
        events
            .iter()
            .map(|event| event.campaign.to_string())
            .collect::<Vec<_>>(),
    )
    .bind(events.iter().map(|event| event.user_id.as_str()).collect::<Vec<_>>())
    .bind(
        events
            .iter()
            .map(|event| event.occurred_at.saturating_mul(1000))
            .collect::<Vec<_>>(),
    )
    .execute(&mut **session)
    .await?;
    Ok(done.rows_affected())
}
