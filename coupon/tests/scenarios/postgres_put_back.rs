//! Postgres is put back to a copy some seconds older, while everything else runs.

use campaign::rebuild::{Force, Rebuilt};
use testkit::{
    eventually::eventually,
    installation::TestInstallation,
    kafka::KafkaServer,
    postgres::{PostgresServer, PostgresSnapshot},
    proxy::{Proxy, Treatment},
    redis::RedisServer,
};
use tokio::sync::watch;
use worker::sweeper::SweepError;

use crate::{
    chain::{Chain, LIMIT, aligner, at_once, how_many, successes, terms, users},
    records::grown_old,
    sweeper::sweeper,
};

/// A chain whose Postgres can be put back.
async fn on_its_own_postgres() -> (PostgresServer, Chain) {
    let postgres = PostgresServer::start().await.unwrap();
    let (redis, kafka) = (
        RedisServer::shared().await.unwrap(),
        KafkaServer::shared().await.unwrap(),
    );
    let on = TestInstallation::on(redis.settings(), kafka.settings(), &postgres)
        .await
        .unwrap();
    (postgres, Chain::on(on).await)
}

/// As the runbook says.
async fn put_back(chain: &Chain, postgres: &mut PostgresServer, copy: &PostgresSnapshot) {
    postgres.restore(copy).await.unwrap();
    eventually(LIMIT, "the state is rebuilt", async || {
        let rebuilder = &chain.aligner.rebuilder;
        let rebuilt = rebuilder.rebuild(&chain.campaign, Force::Always).await.ok()?;
        matches!(rebuilt, Rebuilt::Done { .. }).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_the_lost_seconds_come_back_from_kafka() {
    let (mut postgres, chain) = on_its_own_postgres().await;
    chain.apply(&terms(1_000)).await;
    let door = chain.intake().await;
    let _worker = chain.worker().await;
    let before = door.burst(users(0..100), 50).await;
    chain.settles_with(100).await;
    let copy = postgres.snapshot().await.unwrap();

    // Most come after the copy is back, however fast the chain is.
    let (coming, _) = watch::channel(500);
    let claims = at_once(1_100, |i| {
        let (door, mut coming) = (&door, coming.subscribe());
        async move {
            coming.wait_for(|&coming| i < coming).await.unwrap();
            let user = format!("late-{i}");
            let told = door.claim_until_answered(&user).await;
            (user, told)
        }
    });
    let loss = async {
        eventually(LIMIT, "rows that the copy lacks", async || {
            chain.rows().await.len() > 300
        })
        .await;
        coming.send_replace(800);
        put_back(&chain, &mut postgres, &copy).await;
        coming.send_replace(1_100);
    };
    let (told, ()) = tokio::join!(claims, loss);
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (900, 200));
    chain.settles_with(1_000).await;
    let everybody = successes(&before).union(&successes(&told)).cloned().collect();
    assert_eq!(chain.rows().await, everybody);
    chain.assert_conserved().await;
    eventually(LIMIT, "each event is projected", async || {
        chain.count("SELECT count(*) FROM coupon_activity").await == 1_000
    })
    .await;
    let coupons = "SELECT count(DISTINCT coupon_id) FROM coupon_activity WHERE type = 'COUPON_ISSUED'";
    assert_eq!(chain.count(coupons).await, 1_000);
}

/// All claims are rows and none is settled: their batches stay pending, and the sweeper looks after them. The records may
/// come to a worker one after the other, so there are as many workers as it takes.
async fn persist_without_settling(chain: &Chain, claims: usize) {
    while chain.rows().await.len() < claims {
        commit_and_die(chain).await;
    }
    assert_eq!(chain.rows().await.len(), claims);
    assert_eq!(chain.numbers().await.pending, claims as i64);
}

/// A worker dies between its first commit and its settlement.
async fn commit_and_die(chain: &Chain) {
    let before = chain.rows().await.len();
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut settings = chain.worker_settings();
    settings.redis = proxy.redis_settings();
    settings.tuning.sweep_interval = LIMIT;
    let mut consuming = chain.pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE consumed IN EXCLUSIVE MODE")
        .execute(&mut *consuming)
        .await
        .unwrap();
    let worker = chain.worker_with(settings).await;
    // Not the one of the projection, which moves offsets in the same table.
    let last_step = "SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid) \
                     WHERE datname = current_database() AND wait_event_type = 'Lock' \
                     AND query LIKE '%FROM consumed%FOR UPDATE%' \
                     AND relation = 'coupon'::regclass AND mode = 'RowExclusiveLock'";
    eventually(LIMIT, "its transaction comes to its last step", async || {
        chain.count(last_step).await > 0
    })
    .await;
    proxy.shut().await;
    consuming.commit().await.unwrap();
    eventually(LIMIT, "its rows are there", async || chain.rows().await.len() > before).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweeper_that_saw_the_lost_offsets_starts_anew() {
    let (mut postgres, chain) = on_its_own_postgres().await;
    chain.apply(&terms(10)).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..3), 3).await;
    let copy = postgres.snapshot().await.unwrap();
    persist_without_settling(&chain, 3).await;
    // Its looks at the offsets would be taken for the sweeper's.
    drop(door);

    // The sweeper's own way to Postgres, to put the copy back between two of its questions.
    let proxy = Proxy::to(postgres.port()).await.unwrap();
    let mut on = chain.on.clone();
    on.postgres.postgres_url = proxy.through(&on.postgres.postgres_url, postgres.port());
    on.postgres.postgres_pool = 1;
    let (_, slow) = aligner(&on).await;
    let topic = chain.on.naming.requests_topic();
    // Once before, so that the statement is prepared: its next run is what is seen below.
    slow.database.consumed(&topic).await.unwrap();
    slow.database.ping().await.unwrap();
    grown_old(&chain).await;
    let read_and_told = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                         AND state = 'idle' AND query LIKE 'SELECT partition%FROM consumed%'";
    eventually(LIMIT, "nobody else reads the offsets", async || {
        chain.count(read_and_told).await == 0
    })
    .await;
    let (sweeper, held) = sweeper(&chain, &slow).await;
    proxy.replies(Treatment::Hold);
    let loss = async {
        proxy
            .step_until(LIMIT, "the offsets are read, and not yet known", async || {
                chain.count(read_and_told).await > 0
            })
            .await;
        postgres.restore(&copy).await.unwrap();
        proxy.restore();
    };
    let (swept, ()) = tokio::join!(sweeper.sweep(&held), loss);
    assert!(matches!(swept, Err(SweepError::ConsumedBehind)), "{swept:?}");
    held.release().await.unwrap();

    let _worker = chain.worker().await;
    chain.settles_with(3).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
}
