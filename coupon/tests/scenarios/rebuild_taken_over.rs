//! The rebuilder dies half way.

use campaign::{
    postgres::campaign::CampaignRow,
    rebuild::{Force, Rebuilt},
    redis::state::StateAnswer,
};
use sqlx::Row;
use testkit::{
    eventually::eventually,
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};

use crate::{
    chain::{Chain, LIMIT, aligner, how_many, terms, users},
    holders::add_holders,
    rebuild::lose_state,
    sweeper::behind,
};

/// Enough rows for many appends.
const HOLDERS: i64 = 30_000;

async fn with_holders() -> (Chain, CampaignRow) {
    let chain = Chain::open(HOLDERS + 10).await;
    let row = add_holders(&chain, HOLDERS).await;
    lose_state(&chain).await;
    (chain, row)
}

/// A rebuild by a process that dies when `moment` has come: its connection to Redis is cut and it does nothing more.
async fn dies_when(chain: &Chain, moment: impl AsyncFn() -> bool) {
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut doomed = behind(&proxy, chain).await;
    // Its renewals are no steps of the rebuild, and are not held.
    doomed.rebuilder.locks = chain.aligner.rebuilder.locks.clone();
    proxy.requests(Treatment::Hold);
    let campaign = chain.campaign.clone();
    let rebuild = tokio::spawn(async move { doomed.rebuilder.rebuild(&campaign, Force::IfMissing).await });
    proxy.step_until(LIMIT, "the moment of death", moment).await;
    // First of all: one whose connection is cut ends with an error.
    rebuild.abort();
    let ended = rebuild.await;
    assert!(
        ended.is_err_and(|ended| ended.is_cancelled()),
        "it was done before it could die"
    );
    proxy.shut().await;
}

/// Somebody else finds the door shut and takes over; the door opens with everybody in it.
async fn is_taken_over(chain: &Chain) {
    let rebuilt = eventually(LIMIT, "the next one takes over", async || {
        let rebuilt = chain
            .aligner
            .rebuilder
            .rebuild(&chain.campaign, Force::IfMissing)
            .await
            .unwrap();
        matches!(rebuilt, Rebuilt::Done { .. }).then_some(rebuilt)
    })
    .await;
    let Rebuilt::Done { users, .. } = rebuilt else {
        unreachable!()
    };
    assert_eq!(users as i64, HOLDERS);
    let numbers = chain.numbers().await;
    assert_eq!((numbers.taken, numbers.available()), (HOLDERS, 10));
    let door = chain.intake().await;
    assert!(door.claim("holder-1").await.is("DUPLICATE"));
    assert!(door.claim("somebody").await.is("SUCCESS"));
}

/// The epoch is raised in Postgres, and the state in Redis still serves the one before.
#[tokio::test(flavor = "multi_thread")]
async fn between_postgres_and_begin() {
    let chain = Chain::open(20).await;
    let door = chain.intake().await;
    let _worker = chain.worker().await;
    let told = door.burst(users(0..10), 10).await;
    chain.settles_with(10).await;
    dies_before_begin(&chain).await;
    let row = chain.database.campaign(&chain.campaign).await.unwrap().unwrap();
    assert!(chain.numbers().await.epoch < row.epoch);
    assert!(door.claim("between").await.is("SUCCESS"), "nobody has shut the door");

    let canceled = told[0].1.request.as_deref().unwrap();
    assert_eq!(door.cancel(canceled).await, 200);
    // Refused until the dead one's lock has run out, as every round of the operator is.
    let shrunk = eventually(LIMIT, "the shrink comes through", async || {
        chain.aligner.apply(&chain.campaign, &terms(12)).await.ok()
    })
    .await;
    assert_eq!(shrunk.campaign.terms.quantity, 12);
    chain.settles_with(10).await;
    assert_eq!(chain.numbers().await.epoch, shrunk.campaign.epoch);
    assert!(door.claim(&told[0].0).await.is("DUPLICATE"), "he was canceled");
    let late = door.burst(users(100..105), 5).await;
    assert_eq!((how_many(&late, "SUCCESS"), how_many(&late, "SOLD_OUT")), (2, 3));
    chain.settles_with(12).await;
    chain.assert_conserved().await;
}

/// A rebuild that loses Redis while it waits for the campaign's row to raise the epoch.
async fn dies_before_begin(chain: &Chain) {
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut on = chain.on.clone();
    on.redis = proxy.redis_settings();
    let (_, doomed) = aligner(&on).await;
    let before = chain.numbers().await.epoch;
    let mut other = chain.pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM campaign FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let death = async {
        eventually(LIMIT, "it raises the epoch", async || {
            chain.waits_for_a_lock("SELECT epoch FROM campaign%").await
        })
        .await;
        proxy.shut().await;
        other.commit().await.unwrap();
    };
    let (rebuilt, ()) = tokio::join!(doomed.rebuilder.rebuild(&chain.campaign, Force::Always), death);
    assert!(rebuilt.is_err(), "{rebuilt:?}");
    assert_eq!(chain.numbers().await.epoch, before);
}

async fn is_rebuilding(chain: &Chain) -> bool {
    matches!(
        chain.state.state(&chain.campaign).await,
        Ok(StateAnswer::Rebuilding { .. })
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn after_begin() {
    let (chain, _) = with_holders().await;
    dies_when(&chain, async || is_rebuilding(&chain).await).await;
    is_taken_over(&chain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn between_two_appends() {
    let (chain, _) = with_holders().await;
    let keys = chain.on.naming.state(&chain.campaign);
    let connection = RedisServer::shared().await.unwrap().connection().await.unwrap();
    dies_when(&chain, async || {
        let StateAnswer::Rebuilding { epoch, .. } = chain.state.state(&chain.campaign).await.unwrap() else {
            return false;
        };
        let staged: i64 = redis::cmd("HLEN")
            .arg(keys.staging(epoch).users)
            .query_async(&mut connection.clone())
            .await
            .unwrap();
        (2..HOLDERS / 2).contains(&staged)
    })
    .await;
    is_taken_over(&chain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_transaction_and_before_the_commit_in_redis() {
    let (chain, row) = with_holders().await;
    let before = cuts(&chain, &row).await;
    // The cut is seen when the transaction has committed; the commit in Redis is held then.
    dies_when(&chain, async || cuts(&chain, &row).await > before).await;
    assert!(is_rebuilding(&chain).await);
    is_taken_over(&chain).await;
}

async fn cuts(chain: &Chain, row: &CampaignRow) -> i64 {
    sqlx::query("SELECT count(DISTINCT epoch) FROM epoch_cut WHERE campaign_id = $1")
        .bind(row.id.0)
        .fetch_one(&chain.pool)
        .await
        .unwrap()
        .get(0)
}
