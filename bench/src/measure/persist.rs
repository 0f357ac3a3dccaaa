//! `persist`: the worker on a backlog, against nothing but multi-row inserts of the same rows.
//!
//! The relay stands aside (somebody else holds its lock): what it costs is measured by `relay`.

use std::time::{Duration, Instant};

use campaign::{
    identity::{CampaignId, Instance, RequestId, UserId},
    name::CampaignName,
    redis::{
        connection::Redis,
        lock::{Held, Locks},
    },
};
use sqlx::{Connection, PgConnection, PgPool};

use super::{Effort, reserve::claims_of};
use crate::{
    error::{BenchError, Result},
    latency::median,
    program,
    report::{Findings, Ratio, Section, rate},
    stage::{Installation, Stage},
};

/// Rows of one plain transaction: as many as the worker's.
const ROWS: usize = 1_024;
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Measures.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let claims = effort.size(150_000, 40_000);
    let (mut ours, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..effort.turns.min(3) {
        let installation = stage.installation().await?;
        let inserts = plain_inserts(stage, claims).await?;
        let campaign = installation.campaign(claims as i64).await?;
        installation.backlog(&campaign, claims).await?;
        let relay = hold_relay(&installation).await?;
        let worker = program::worker(&installation.arguments).await?;
        let persisted = persisted_rate(&installation.pool, &campaign, claims).await?;
        worker.stop().await?;
        relay.release().await?;
        eprintln!(
            "  turn {turn}: worker {}/s, plain inserts {}/s",
            rate(persisted),
            rate(inserts)
        );
        ours.push(persisted);
        plain.push(inserts);
        ratios.push(persisted / inserts);
    }
    let mut section = Section::new(
        "Persist",
        format!(
            "{} claims, 1,024 rows a transaction on both sides, one campaign (so one transaction at a time). The worker reads \
             Kafka, takes permits and the lock, writes batches, coupons, events and offsets, and settles in Redis.",
            rate(claims as f64)
        ),
        &["", "coupons/s (median)"],
    );
    section.row(["the worker".to_owned(), rate(median(&ours))]);
    section.row(["plain multi-row inserts".to_owned(), rate(median(&plain))]);
    Ok(Findings {
        ratios: vec![Ratio::at_least("persist", median(&ratios), 0.7)],
        sections: vec![section],
    })
}

/// Keeps every relay of the installation waiting.
pub async fn hold_relay(installation: &Installation) -> Result<Held> {
    let locks = Locks::new(Redis::connect(&installation.arguments.redis).await?);
    let held = locks
        .try_acquire(&installation.naming.relay_lock(), Duration::from_secs(30), 0)
        .await?;
    held.ok_or_else(|| BenchError::Invalid("a relay runs already".to_owned()))
}

/// Coupons a second from the first tenth to the last: the start of the process is not what is measured.
pub async fn persisted_rate(pool: &PgPool, campaign: &CampaignName, claims: usize) -> Result<f64> {
    let mut first = None::<(Instant, i64)>;
    let deadline = Instant::now() + LIMIT;
    loop {
        let (now, issued) = (Instant::now(), issued(pool, campaign).await?);
        if issued >= claims as i64 {
            let (at, from) = first
                .ok_or_else(|| BenchError::Invalid("the backlog was gone before it could be watched".to_owned()))?;
            return Ok((issued - from) as f64 / (now - at).as_secs_f64());
        }
        if first.is_none() && issued >= claims as i64 / 10 {
            first = Some((now, issued));
        }
        if now > deadline {
            return Err(BenchError::Invalid(format!(
                "{issued} of {claims} coupons after {LIMIT:?}"
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Coupons of a campaign so far.
pub async fn issued(pool: &PgPool, campaign: &CampaignName) -> Result<i64> {
    Ok(
        sqlx::query_scalar("SELECT issued FROM campaign WHERE namespace = $1 AND name = $2")
            .bind(campaign.namespace())
            .bind(campaign.name())
            .fetch_one(pool)
            .await?,
    )
}

/// Coupons a second of a program that only inserts coupons and their outbox rows.
async fn plain_inserts(stage: &Stage, claims: usize) -> Result<f64> {
    let database = stage.postgres.fresh_database().await?;
    let mut connection = PgConnection::connect(&database.settings.postgres_url).await?;
    let campaign = CampaignId(uuid::Uuid::now_v7());
    let instance = Instance::random();
    let users: Vec<(UserId, RequestId)> = (0..).flat_map(|call| claims_of(&instance, call)).take(claims).collect();
    let began = Instant::now();
    for (n, rows) in users.chunks(ROWS).enumerate() {
        let ids: Vec<uuid::Uuid> = rows.iter().map(|(_, request)| request.0).collect();
        let names: Vec<&str> = rows.iter().map(|(user, _)| user.as_str()).collect();
        let codes: Vec<String> = rows.iter().map(|_| format!("BF26-{:013X}", rand_bits())).collect();
        let batch = instance.batch(n as u64);
        let reservations: Vec<String> = (0..).zip(rows).map(|(i, _)| batch.reservation(i).to_string()).collect();
        let mut transaction = connection.begin().await?;
        sqlx::query(
            "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at, valid_until) \
             SELECT id, $1, user_id, code, reservation, now(), now() + interval '30 days' \
             FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[]) AS c(id, user_id, code, reservation)",
        )
        .bind(campaign.0)
        .bind(&ids)
        .bind(&names)
        .bind(&codes)
        .bind(&reservations)
        .execute(&mut *transaction)
        .await?;
        sqlx::query(
            "INSERT INTO outbox (type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
             SELECT 'COUPON_ISSUED', coupon_id, $1, 'default/sale', user_id, now() \
             FROM unnest($2::uuid[], $3::text[]) AS e(coupon_id, user_id)",
        )
        .bind(campaign.0)
        .bind(&ids)
        .bind(&names)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
    }
    let took = began.elapsed();
    connection.close().await?;
    Ok(claims as f64 / took.as_secs_f64())
}

/// 52 random bits.
fn rand_bits() -> u128 {
    uuid::Uuid::new_v4().as_u128() & 0xF_FFFF_FFFF_FFFF
}
