//! Others go on while a state is rebuilt: doors, workers, another rebuild.

use campaign::{
    rebuild::{Force, Rebuilt},
    redis::state::StateAnswer,
};
use testkit::{
    eventually::eventually,
    installation::TestInstallation,
    kafka::KafkaServer,
    postgres::PostgresServer,
    proxy::{Proxy, Treatment},
    redis::{RedisOptions, RedisServer},
};
use tokio::sync::watch;

use crate::{
    chain::{Chain, LIMIT, at_once, how_many, successes, terms, users},
    holders::add_holders,
    rebuild::lose_state,
    sweeper::behind,
};

/// The rebuild has read the rows and is slow to append them; a worker that waits for the campaign's row would like to
/// persist what is still in Kafka.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_a_worker_wants_to_persist_meanwhile_keep_their_slots() {
    let chain = Chain::open(5_003).await;
    add_holders(&chain, 5_000).await;
    let rebuilder = &chain.aligner.rebuilder;
    rebuilder.rebuild(&chain.campaign, Force::Always).await.unwrap();
    let door = chain.intake().await;
    let told = door.burst(users(0..3), 3).await;
    assert_eq!(how_many(&told, "SUCCESS"), 3);

    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let mut slow = behind(&proxy, &chain).await;
    // It stays the only one at work, however long it is held up.
    slow.rebuilder.locks = rebuilder.locks.clone();
    proxy.requests(Treatment::Hold);
    let meanwhile = async {
        proxy
            .step_until(LIMIT, "the rows are read", async || {
                let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                            AND state = 'idle in transaction' AND query LIKE '%FROM coupon%'";
                chain.count(open).await > 0
            })
            .await;
        let worker = chain.worker().await;
        eventually(LIMIT, "the worker waits for the campaign's row", async || {
            chain.waits_for_a_lock("%FROM campaign%FOR UPDATE%").await
        })
        .await;
        proxy.restore();
        worker
    };
    let rebuild = slow.rebuilder.rebuild(&chain.campaign, Force::Always);
    let (rebuilt, _worker) = tokio::join!(rebuild, meanwhile);
    let other = door.claim("other").await;
    let told: Vec<_> = told.iter().map(|(user, told)| (user.as_str(), told)).collect();
    chain.assert_kept(&[told, vec![("other", &other)]].concat()).await;
    assert!(matches!(rebuilt, Ok(Rebuilt::Done { users: 5_003, .. })), "{rebuilt:?}");
    assert!(other.is("SOLD_OUT"), "{other:?}");
    chain.settles_with(5_003).await;
    chain.assert_conserved().await;
}

/// A rebuilder is held up before its last step, for longer than its lock lives. The next one finishes, and while a
/// third one is at work the last step of the first one comes after all.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_rebuild_that_comes_back_opens_nothing() {
    let chain = Chain::open(2).await;
    let door = chain.intake().await;
    let _worker = chain.worker().await;
    let proxy = Proxy::to(RedisServer::shared().await.unwrap().port()).await.unwrap();
    let held_up = behind(&proxy, &chain).await;
    proxy.requests(Treatment::Hold);
    let cuts = async || chain.count("SELECT count(DISTINCT epoch) FROM epoch_cut").await;
    let before = cuts().await;
    let moments = async {
        // Its last step is held then.
        proxy
            .step_until(LIMIT, "its transaction has committed", async || cuts().await > before)
            .await;
        eventually(LIMIT, "the next one takes over", async || {
            let rebuilder = &chain.aligner.rebuilder;
            let rebuilt = rebuilder.rebuild(&chain.campaign, Force::Always).await.unwrap();
            matches!(rebuilt, Rebuilt::Done { .. })
        })
        .await;
    };
    let (first, ()) = tokio::join!(held_up.rebuilder.rebuild(&chain.campaign, Force::Always), moments);
    assert!(first.is_err(), "its lock is lost: {first:?}");
    let a = door.claim("a").await;
    assert!(a.is("SUCCESS"), "{a:?}");
    chain.settles_with(1).await;

    let comes_back = async {
        eventually(LIMIT, "the third one has begun", async || {
            let state = chain.state.state(&chain.campaign).await;
            matches!(state, Ok(StateAnswer::Rebuilding { .. }))
        })
        .await;
        proxy.restore();
    };
    let third = chain.aligner.rebuilder.rebuild(&chain.campaign, Force::Always);
    let (third, ()) = tokio::join!(third, comes_back);
    let again = door.claim("a").await;
    let (b, c) = (door.claim("b").await, door.claim("c").await);
    chain
        .assert_kept(&[("a", &a), ("a", &again), ("b", &b), ("c", &c)])
        .await;
    assert!(matches!(third, Ok(Rebuilt::Done { users: 1, .. })), "{third:?}");
    assert!(again.is("DUPLICATE") && b.is("SUCCESS") && c.is("SOLD_OUT"));
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}

/// A large campaign is rebuilt in pieces, on a server that serves another one meanwhile; those who claim from it are
/// told to come again, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_thousand_users_are_rebuilt_in_pieces_while_claims_run() {
    const HOLDERS: i64 = 200_000;
    let redis = RedisServer::start_with(every_call_logged()).await.unwrap();
    let (kafka, postgres) = (
        KafkaServer::shared().await.unwrap(),
        PostgresServer::shared().await.unwrap(),
    );
    let on = TestInstallation::on(redis.settings(), kafka.settings(), postgres)
        .await
        .unwrap();
    let chain = Chain::on(on.clone()).await;
    chain.apply(&terms(HOLDERS + 40)).await;
    add_holders(&chain, HOLDERS).await;
    let beside = Chain::on(on).await;
    beside.apply(&terms(1_000_000)).await;
    let _worker = chain.worker().await;
    let (door, other) = (chain.intake().await, beside.intake().await);
    lose_state(&chain).await;

    let (done, running) = watch::channel(false);
    let asks = at_once(60, |i| {
        let door = &door;
        async move {
            let user = format!("user-{i}");
            let told = door.claim_until_answered(&user).await;
            (user, told)
        }
    });
    let claims_beside = at_once(4, |i| {
        let (other, running) = (&other, running.clone());
        async move {
            let mut told = Vec::new();
            while !*running.borrow() {
                let user = format!("beside-{i}-{}", told.len());
                let answer = other.claim(&user).await;
                told.push((user, answer));
            }
            told
        }
    });
    let asks = async {
        let told = asks.await;
        done.send_replace(true);
        told
    };
    let (told, beside_told) = tokio::join!(asks, claims_beside);
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (40, 20));
    assert!(door.claim("holder-1").await.is("DUPLICATE") && door.claim("holder-200000").await.is("DUPLICATE"));
    let beside_told: Vec<_> = beside_told.into_iter().flatten().collect();
    assert_eq!(
        how_many(&beside_told, "SUCCESS"),
        beside_told.len(),
        "the other campaign was held up"
    );
    chain.settles_with(HOLDERS + 40).await;
    assert!(chain.rows().await.is_superset(&successes(&told)));
    chain.assert_conserved().await;
    assert!(most_arguments(&redis).await < 5_000, "one call carries it all");
}

fn every_call_logged() -> RedisOptions {
    RedisOptions::default()
        .with("slowlog-log-slower-than", "0")
        .with("slowlog-max-len", "1000000")
}

/// Of all calls that the server has served.
async fn most_arguments(redis: &RedisServer) -> usize {
    type Call = (i64, i64, i64, Vec<String>, String, String);
    let mut connection = redis.connection().await.unwrap();
    let mut slowlog = redis::cmd("SLOWLOG");
    let calls: Vec<Call> = slowlog.arg("GET").arg(-1).query_async(&mut connection).await.unwrap();
    // The log keeps the first 31, and says how many more there were.
    let arguments = |(_, _, _, arguments, _, _): &Call| {
        let more = arguments
            .last()
            .and_then(|last| last.strip_prefix("... (")?.split(' ').next()?.parse().ok());
        arguments.len() - 1 + more.unwrap_or(1)
    };
    calls.iter().map(arguments).max().unwrap()
}
