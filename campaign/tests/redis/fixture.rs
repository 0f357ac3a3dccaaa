//! A campaign of its own on a Redis server, and what tests do with it.

use campaign::{
    identity::{BatchId, CampaignId, Epoch, Instance, RequestId, Reservation, UserId},
    name::CampaignName,
    naming::{Naming, StateKeys},
    redis::{
        connection::Redis,
        state::{
            Appended, Configuration, RebuildStep, RebuiltEntry, RebuiltState, ReserveAnswer, ReserveOutcome,
            StateAnswer, StateNumbers, StateStore,
        },
    },
    settings::RedisSettings,
};
use redis::aio::MultiplexedConnection;
use testkit::redis::RedisServer;
use uuid::Uuid;

pub const EPOCH: Epoch = Epoch(1_700_000_000);
pub const TTL_MS: i64 = 60_000;

/// A campaign that nobody else uses.
pub struct Fixture {
    pub redis: Redis,
    pub store: StateStore,
    pub naming: Naming,
    pub campaign: CampaignName,
    pub id: CampaignId,
    instance: Instance,
    batches: std::sync::atomic::AtomicU64,
}

impl Fixture {
    /// On the server that all tests share.
    pub async fn shared() -> Self {
        Self::on(&RedisServer::shared().await.unwrap().settings()).await
    }

    pub async fn on(settings: &RedisSettings) -> Self {
        let redis = Redis::connect(settings).await.unwrap();
        let naming = Naming::new(&format!("t{}", &Uuid::new_v4().simple().to_string()[..12])).unwrap();
        Self {
            store: StateStore::new(redis.clone(), naming.clone()),
            redis,
            naming,
            campaign: CampaignName::new("shop", "sale").unwrap(),
            id: CampaignId(Uuid::now_v7()),
            instance: Instance::random(),
            batches: 0.into(),
        }
    }

    /// Opens the campaign: no window, ttl of a minute.
    pub async fn open(self, quantity: i64) -> Self {
        self.rebuild(&configuration(quantity), &[]).await;
        self
    }

    /// Rebuilds the state from entries of distinct users.
    pub async fn rebuild(&self, configuration: &Configuration, entries: &[RebuiltEntry]) {
        let epoch = configuration.epoch;
        let begun = self.store.rebuild_begin(&self.campaign, self.id, epoch).await.unwrap();
        assert_eq!(begun, RebuildStep::Done);
        let appended = self.store.rebuild_append(&self.campaign, epoch, entries).await.unwrap();
        assert!(matches!(appended, Appended::Users(_)));
        let rebuilt = self.rebuilt(configuration, entries.len() as u64);
        let committed = self.store.rebuild_commit(&self.campaign, &rebuilt).await.unwrap();
        assert_eq!(committed, RebuildStep::Done);
    }

    pub fn rebuilt(&self, configuration: &Configuration, users: u64) -> RebuiltState {
        RebuiltState {
            campaign: self.id,
            configuration: configuration.clone(),
            users,
        }
    }

    pub fn keys(&self) -> StateKeys {
        self.naming.state(&self.campaign)
    }

    /// A batch that was not used before.
    pub fn batch(&self) -> BatchId {
        let n = self.batches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.instance.batch(n)
    }

    /// Reserves for users, each with a new request, in a new batch.
    pub async fn claim(&self, users: &[&str]) -> Claimed {
        let claims: Vec<_> = users.iter().map(|name| (user(name), RequestId::fresh())).collect();
        let batch = self.batch();
        let outcomes = self.reserve(&batch, &claims).await;
        Claimed {
            batch,
            claims,
            outcomes,
        }
    }

    /// Reserves; the campaign must be open.
    pub async fn reserve(&self, batch: &BatchId, claims: &[(UserId, RequestId)]) -> Vec<ReserveOutcome> {
        match self.store.reserve(&self.campaign, batch, claims).await.unwrap() {
            ReserveAnswer::Judged(reserved) => reserved.outcomes,
            ReserveAnswer::Refused(refusal) => panic!("refused: {refusal:?}"),
        }
    }

    pub async fn numbers(&self) -> StateNumbers {
        match self.store.state(&self.campaign).await.unwrap() {
            StateAnswer::Present(numbers) => numbers,
            other => panic!("no usable state: {other:?}"),
        }
    }

    /// Available, taken, pending.
    pub async fn counts(&self) -> (i64, i64, i64) {
        let numbers = self.numbers().await;
        (numbers.available(), numbers.taken, numbers.pending)
    }
}

/// What `claim` did.
pub struct Claimed {
    pub batch: BatchId,
    pub claims: Vec<(UserId, RequestId)>,
    pub outcomes: Vec<ReserveOutcome>,
}

impl Claimed {
    /// The `i`-th claim, as release wants it.
    pub fn reservation(&self, i: u16) -> (UserId, Reservation) {
        (self.claims[usize::from(i)].0.clone(), self.batch.reservation(i))
    }

    pub fn request(&self, i: usize) -> RequestId {
        self.claims[i].1
    }
}

pub fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

pub fn configuration(quantity: i64) -> Configuration {
    Configuration {
        epoch: EPOCH,
        revision: 1,
        quantity,
        opens_at: None,
        closes_at: None,
        ttl_ms: TTL_MS,
        paused: false,
    }
}

/// A connection of the test's own to the shared server.
pub async fn raw() -> MultiplexedConnection {
    RedisServer::shared().await.unwrap().connection().await.unwrap()
}

/// Time to live of a campaign's five keys, in ms; only of those that are there.
pub async fn lives(connection: &mut MultiplexedConnection, keys: &StateKeys) -> Vec<i64> {
    let mut lives = Vec::new();
    for key in [
        &keys.meta,
        &keys.occupied,
        &keys.users,
        &keys.pending,
        &keys.pending_claims,
    ] {
        let life: i64 = redis::cmd("PTTL").arg(key).query_async(connection).await.unwrap();
        if life != -2 {
            lives.push(life);
        }
    }
    lives
}
