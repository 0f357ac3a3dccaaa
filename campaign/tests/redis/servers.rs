//! The layouts and their failures: nothing that may have run is sent twice, and everything recovers by itself.

use std::time::Duration;

use campaign::{
    identity::RequestId,
    redis::{
        connection::{Redis, RedisError},
        limit::ProcessingLimit,
        lock::Locks,
        preflight,
        state::{Refusal, ReserveAnswer, ReserveOutcome::Success, StateAnswer, Transition},
    },
};
use testkit::{
    eventually::eventually,
    proxy::Proxy,
    redis::{RedisOptions, RedisServer},
    redis_cluster::RedisCluster,
    redis_sentinel::RedisSentinel,
};

use crate::fixture::{EPOCH, Fixture, configuration, user};

const SOON: Duration = Duration::from_secs(120);

/// How often a server ran scripts, by its own count.
async fn scripts_run(server: &RedisServer) -> u64 {
    let mut raw = server.connection().await.unwrap();
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut raw)
        .await
        .unwrap();
    let calls = |line: &str| -> u64 {
        let (_, calls) = line.split_once("calls=").unwrap();
        calls.split(',').next().unwrap().parse().unwrap()
    };
    stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"))
        .map(calls)
        .sum()
}

#[tokio::test]
async fn a_reserve_whose_answer_was_lost_is_not_run_again() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::to(server.port()).await.unwrap();
    let mut settings = proxy.redis_settings();
    settings.redis_timeout = Duration::from_secs(5);
    let fixture = Fixture::on(&settings).await.open(5).await;
    fixture.claim(&["warm"]).await;

    for cut in [false, true] {
        let before = scripts_run(&server).await;
        let claims = [(user(if cut { "a" } else { "b" }), RequestId::fresh())];
        let batch = fixture.batch();
        proxy.drop_replies();
        let (answer, ()) = tokio::join!(fixture.store.reserve(&fixture.campaign, &batch, &claims), async {
            if cut {
                eventually(SOON, "the script ran", async || scripts_run(&server).await > before).await;
                proxy.cut();
            }
        });
        assert!(matches!(answer, Err(RedisError::Unanswered { .. })), "{answer:?}");
        proxy.restore();
        eventually(SOON, "the connection is back", async || {
            fixture.redis.ping().await.is_ok()
        })
        .await;
        assert_eq!(scripts_run(&server).await, before + 1);

        // The sweep finds it, and the same key succeeds then; it counts once.
        let expired = fixture
            .store
            .expired_batches(&fixture.campaign, -1, 10)
            .await
            .unwrap()
            .unwrap();
        assert!(expired.contains(&batch));
        let batches = [batch.clone()];
        let found = fixture
            .store
            .claims_of(&fixture.campaign, &batches)
            .await
            .unwrap()
            .unwrap();
        let reservations = [(found[0].0.clone(), found[0].2.clone())];
        assert_eq!(found.len(), 1);
        let released = fixture.store.release(&fixture.campaign, &reservations).await.unwrap();
        let settled = fixture.store.settle(&fixture.campaign, &batches).await.unwrap();
        assert_eq!([released, settled], [Transition::Done(1); 2]);
        assert_eq!(fixture.reserve(&fixture.batch(), &claims).await, [Success]);
    }
    assert_eq!(fixture.counts().await, (2, 3, 3));
}

#[tokio::test]
async fn a_reserve_whose_answer_was_lost_is_not_run_again_on_a_cluster() {
    let (cluster, proxies) = RedisCluster::behind_proxies().await.unwrap();
    let mut settings = cluster.settings();
    settings.redis_urls = vec![format!("redis://127.0.0.1:{}", proxies[0].port())];
    settings.redis_timeout = Duration::from_secs(60);
    let fixture = Fixture::on(&settings).await.open(5).await;
    let total = async || {
        let mut total = 0;
        for node in cluster.nodes() {
            total += scripts_run(node).await;
        }
        total
    };
    fixture.claim(&["warm"]).await;
    let before = total().await;
    for proxy in &proxies {
        proxy.drop_replies();
    }
    let claims = [(user("a"), RequestId::fresh())];
    let batch = fixture.batch();
    let (answer, ()) = tokio::join!(fixture.store.reserve(&fixture.campaign, &batch, &claims), async {
        eventually(SOON, "the script ran", async || total().await > before).await;
        for proxy in &proxies {
            proxy.cut();
        }
    });
    assert!(matches!(answer, Err(RedisError::Unanswered { .. })), "{answer:?}");
    for proxy in &proxies {
        proxy.restore();
    }
    eventually(SOON, "the connections are back", async || {
        fixture.redis.ping().await.is_ok()
    })
    .await;
    assert_eq!(total().await, before + 1);
    assert_eq!(fixture.counts().await, (3, 2, 2));
}

#[tokio::test]
async fn a_server_that_is_down_has_run_nothing_and_is_found_again() {
    let mut server = RedisServer::start_with(RedisOptions::default().persistent())
        .await
        .unwrap();
    let fixture = Fixture::on(&server.settings()).await.open(5).await;
    server.stop();
    let claims = [(user("a"), RequestId::fresh())];
    let reserve = async || {
        let batch = fixture.batch();
        fixture.store.reserve(&fixture.campaign, &batch, &claims).await
    };
    eventually(SOON, "the loss is seen", async || {
        matches!(reserve().await, Err(RedisError::NotRun { .. }))
    })
    .await;
    server.restart(testkit::redis::RestartWith::ItsFiles).await.unwrap();
    // Its keys are back, but it may have lost writes: another run id is another server.
    let refused = ReserveAnswer::Refused(Refusal::NotInitialized);
    eventually(SOON, "it answers again", async || {
        reserve().await.is_ok_and(|answer| answer == refused)
    })
    .await;
    let state = fixture.store.state(&fixture.campaign).await.unwrap();
    assert_eq!(state, StateAnswer::NotInitialized);
    let (store, campaign) = (&fixture.store, &fixture.campaign);
    let released = store
        .release(campaign, &[(user("a"), fixture.batch().reservation(0))])
        .await;
    assert_eq!(released.unwrap(), Transition::NotInitialized);
    assert_eq!(store.expired_batches(campaign, -1, 10).await.unwrap(), None);
}

#[tokio::test]
async fn only_what_answered_noscript_is_loaded_again() {
    let server = RedisServer::start().await.unwrap();
    let fixture = Fixture::on(&server.settings()).await.open(300).await;
    let flusher = async {
        let mut raw = server.connection().await.unwrap();
        for _ in 0..50 {
            redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut raw).await.unwrap();
        }
    };
    let claims = futures::future::join_all((0..4).map(|lane| {
        let fixture = &fixture;
        async move {
            for n in 0..75 {
                assert_eq!(fixture.claim(&[&format!("u{lane}-{n}")]).await.outcomes, [Success]);
            }
        }
    }));
    tokio::join!(flusher, claims);
    assert_eq!(fixture.counts().await, (0, 300, 300));
}

#[tokio::test]
async fn a_primary_that_was_demoted_and_promoted_again_is_used_without_a_restart() {
    let server = RedisServer::start().await.unwrap();
    let fixture = Fixture::on(&server.settings()).await.open(5).await;
    let mut raw = server.connection().await.unwrap();
    let mut replica_of = async |host: &str, port: &str| {
        let command = redis::cmd("REPLICAOF").arg(host).arg(port).to_owned();
        command.exec_async(&mut raw).await.unwrap();
    };
    // Nobody listens there: it stays what it is, read-only.
    replica_of("127.0.0.1", "1").await;
    let claims = [(user("a"), RequestId::fresh())];
    let answer = fixture
        .store
        .reserve(&fixture.campaign, &fixture.batch(), &claims)
        .await;
    assert!(matches!(answer, Err(RedisError::NotRun { .. })), "{answer:?}");

    replica_of("NO", "ONE").await;
    assert_eq!(fixture.reserve(&fixture.batch(), &claims).await, [Success]);
    assert_eq!(fixture.counts().await, (4, 1, 1));
}

#[tokio::test]
async fn sentinels_lead_to_the_new_primary() {
    let mut group = RedisSentinel::start().await.unwrap();
    let fixture = Fixture::on(&group.settings()).await.open(5).await;
    every_script_runs(&fixture).await;
    preflight::check(&fixture.redis).await.unwrap();
    let lag = fixture.store.failover_lag(&fixture.campaign).await.unwrap();
    assert_eq!(lag, Duration::from_secs(10), "min-replicas-max-lag");

    group.kill_primary().await.unwrap();
    // Another server: what it holds may lack the last writes.
    eventually(SOON, "the new primary answers", async || {
        fixture
            .store
            .state(&fixture.campaign)
            .await
            .is_ok_and(|state| state == StateAnswer::NotInitialized)
    })
    .await;
    let mut next = configuration(5);
    next.epoch.0 = EPOCH.0 + 100;
    fixture.rebuild(&next, &[]).await;
    assert_eq!(fixture.claim(&["b"]).await.outcomes, [Success]);
}

#[tokio::test]
async fn every_script_runs_on_a_cluster() {
    let cluster = RedisCluster::shared().await.unwrap();
    let mut settings = cluster.settings();
    settings.redis_urls.truncate(1);
    for _ in 0..6 {
        // Different campaigns, so different nodes.
        let mut fixture = Fixture::on(&settings).await;
        let name = format!("sale-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        fixture.campaign = campaign::name::CampaignName::new("shop", &name).unwrap();
        let fixture = fixture.open(5).await;
        every_script_runs(&fixture).await;
        let lag = fixture.store.failover_lag(&fixture.campaign).await.unwrap();
        assert_eq!(lag, Duration::ZERO, "nothing can take over");
    }
    let redis = Redis::connect(&settings).await.unwrap();
    preflight::check(&redis).await.unwrap();
}

#[tokio::test]
async fn a_slot_that_moves_is_followed() {
    let cluster = RedisCluster::start().await.unwrap();
    let fixture = Fixture::on(&cluster.settings()).await.open(5).await;
    fixture.claim(&["a"]).await;
    let key = fixture.keys().meta;
    let mut raw = cluster.nodes()[0].connection().await.unwrap();
    let slot: u16 = redis::cmd("CLUSTER")
        .arg("KEYSLOT")
        .arg(&key)
        .query_async(&mut raw)
        .await
        .unwrap();

    let mut ids = Vec::new();
    let mut owner = None;
    for (i, node) in cluster.nodes().iter().enumerate() {
        let mut raw = node.connection().await.unwrap();
        let id: String = redis::cmd("CLUSTER").arg("MYID").query_async(&mut raw).await.unwrap();
        let keys: u64 = redis::cmd("CLUSTER")
            .arg("COUNTKEYSINSLOT")
            .arg(slot)
            .query_async(&mut raw)
            .await
            .unwrap();
        if keys > 0 {
            owner = Some(i);
        }
        ids.push(id);
    }
    let owner = owner.unwrap();
    let target = (owner + 1) % 3;
    let set_slot = async |node: usize, how: &str, id: &str| {
        let mut raw = cluster.nodes()[node].connection().await.unwrap();
        let command = redis::cmd("CLUSTER")
            .arg("SETSLOT")
            .arg(slot)
            .arg(how)
            .arg(id)
            .to_owned();
        command.exec_async(&mut raw).await.unwrap();
    };
    set_slot(target, "IMPORTING", &ids[owner]).await;
    set_slot(owner, "MIGRATING", &ids[target]).await;
    let mut from = cluster.nodes()[owner].connection().await.unwrap();
    let keys: Vec<String> = redis::cmd("CLUSTER")
        .arg("GETKEYSINSLOT")
        .arg(slot)
        .arg(100)
        .query_async(&mut from)
        .await
        .unwrap();
    let mut migrate = redis::cmd("MIGRATE");
    migrate
        .arg("127.0.0.1")
        .arg(cluster.nodes()[target].port())
        .arg("")
        .arg(0)
        .arg(5_000)
        .arg("KEYS")
        .arg(&keys);
    migrate.exec_async(&mut from).await.unwrap();

    // ASK: the keys are there, the slot is not yet. (The other node is another server: the state says so.)
    let state = fixture.store.state(&fixture.campaign).await.unwrap();
    assert_eq!(state, StateAnswer::NotInitialized);
    for node in [target, owner, (owner + 2) % 3] {
        set_slot(node, "NODE", &ids[target]).await;
    }
    // MOVED.
    let mut next = configuration(5);
    next.epoch.0 += 1;
    fixture.rebuild(&next, &[]).await;
    assert_eq!(fixture.claim(&["b"]).await.outcomes, [Success]);
}

/// Each transition once, also the lock and the limit.
async fn every_script_runs(fixture: &Fixture) {
    let (store, campaign) = (&fixture.store, &fixture.campaign);
    let claimed = fixture.claim(&["a", "b"]).await;
    assert_eq!(claimed.outcomes, [Success; 2]);
    let batches = [claimed.batch.clone()];
    assert_eq!(
        store.expired_batches(campaign, -1, 10).await.unwrap(),
        Some(batches.to_vec())
    );
    assert_eq!(
        store
            .claims_of(campaign, &batches)
            .await
            .unwrap()
            .map(|claims| claims.len()),
        Some(2)
    );
    let released = store.release(campaign, &[claimed.reservation(1)]).await.unwrap();
    let settled = store.settle(campaign, &batches).await.unwrap();
    let restocked = store
        .restock(campaign, &user("a"), claimed.request(0), EPOCH)
        .await
        .unwrap();
    assert_eq!([released, settled, restocked], [Transition::Done(1); 3]);
    store.marker(campaign, &user("a")).await.unwrap();
    store.configure(campaign, &configuration(5)).await.unwrap();
    assert_eq!(fixture.counts().await, (5, 0, 0));

    let locks = Locks::new(fixture.redis.clone());
    let key = fixture.naming.issue_lock(campaign);
    let held = locks
        .try_acquire(&key, Duration::from_millis(300), 0)
        .await
        .unwrap()
        .unwrap();
    let start = tokio::time::Instant::now();
    eventually(SOON, "renewed", async || start.elapsed() > Duration::from_millis(400)).await;
    held.release().await.unwrap();

    let limit = ProcessingLimit::new(fixture.redis.clone(), &fixture.naming, 10);
    limit.set_rate(5).await.unwrap();
    assert_eq!(limit.acquire(7).await.unwrap().permits, 5);

    store.remove(campaign, fixture.id).await.unwrap();
    assert_eq!(store.state(campaign).await.unwrap(), StateAnswer::NotInitialized);
    let mut next = configuration(5);
    next.epoch.0 += 1;
    fixture.rebuild(&next, &[]).await;
}
