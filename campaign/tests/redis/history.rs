//! Random histories of a campaign's state: after every step Redis must hold, and must have answered, what the model
//! says.

use std::collections::{BTreeMap, HashMap};

use campaign::{
    identity::{BatchId, CampaignId, Epoch, RequestId, Reservation, UserId},
    redis::state::{Configuration, RebuiltEntry, RebuiltState, Refusal, ReserveAnswer, StateAnswer, StateStatus},
};
use jiff::{SignedDuration, Timestamp};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use redis::aio::MultiplexedConnection;
use testkit::redis::RedisServer;
use uuid::Uuid;

use crate::{
    fixture::{EPOCH, Fixture, TTL_MS},
    model::{Meta, Model, Slots, Terms, Unusable, Window},
};

const USERS: u8 = 5;
const REQUESTS: u8 = 2;

/// One step. Batches and epochs are counted from the newest: 0 is the newest, 1 the one before.
#[derive(Clone, Debug)]
enum Step {
    Reserve(Vec<(u8, u8)>),
    Release(Vec<(u8, usize, u16)>),
    Settle(Vec<usize>),
    Restock(u8, u8, i64),
    /// With whether the terms are set ahead of Postgres.
    Configure(Applied, i64, bool),
    Begin(i64),
    Append(Vec<(Entry, u8, u8, usize, u16)>, i64),
    /// How many users more than staged are announced (at least 0 in all).
    Commit(Applied, i64, u64),
    /// A whole rebuild, so that histories do not stay without a state.
    Rebuild(Applied, Vec<(Entry, u8, u8, usize, u16)>),
    /// All keys are gone.
    Flush,
    /// One of meta, occupied-count, users is gone.
    Lose(usize),
    /// Another server took over.
    ChangeServer,
    Remove(bool),
    ScriptFlush,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Holder,
    Canceled,
    Pending,
}

#[derive(Clone, Copy, Debug)]
struct Applied {
    quantity: i64,
    revision: i64,
    paused: bool,
    window: Window,
}

fn applied() -> impl Strategy<Value = Applied> {
    let window = prop_oneof![8 => Just(Window::Within), 1 => Just(Window::Before), 1 => Just(Window::After)];
    (0..5i64, 1..4i64, prop::bool::weighted(0.1), window).prop_map(|(quantity, revision, paused, window)| Applied {
        quantity,
        revision,
        paused,
        window,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let claim = || (0..USERS, 0..REQUESTS);
    let entry = || {
        let kind = prop_oneof![Just(Entry::Holder), Just(Entry::Canceled), Just(Entry::Pending)];
        (kind, 0..USERS, 0..REQUESTS, 0..4usize, 0..4u16)
    };
    let age = || prop_oneof![6 => Just(0i64), 1 => Just(1)];
    prop_oneof![
        30 => vec(claim(), 1..6).prop_map(Step::Reserve),
        12 => vec((0..USERS, 0..4usize, 0..4u16), 1..8).prop_map(Step::Release),
        10 => vec(0..5usize, 1..3).prop_map(Step::Settle),
        8 => (0..USERS, 0..REQUESTS, age()).prop_map(|(user, request, age)| Step::Restock(user, request, age)),
        8 => (applied(), age(), any::<bool>())
            .prop_map(|(applied, age, ahead)| Step::Configure(applied, age, ahead)),
        2 => (-1..2i64).prop_map(Step::Begin),
        3 => (vec(entry(), 0..6), age()).prop_map(|(entries, age)| Step::Append(entries, age)),
        3 => (applied(), age(), 0..2u64).prop_map(|(applied, age, more)| Step::Commit(applied, age, more)),
        8 => (applied(), vec(entry(), 0..6)).prop_map(|(applied, entries)| Step::Rebuild(applied, entries)),
        1 => Just(Step::Flush),
        1 => (0..3usize).prop_map(Step::Lose),
        1 => Just(Step::ChangeServer),
        1 => any::<bool>().prop_map(Step::Remove),
        1 => Just(Step::ScriptFlush),
    ]
}

#[test]
fn redis_holds_and_answers_what_the_model_says() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(RedisServer::start()).unwrap();
    let config = Config {
        cases: 64,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&vec(step(), 1..50), |steps| {
            runtime.block_on(async {
                let mut history = History::start(&server).await;
                history.apply(Step::Rebuild(SMALL, Vec::new())).await?;
                for step in steps {
                    history.apply(step).await?;
                }
                Ok(())
            })
        })
        .unwrap();
}

/// A history that the random ones have found.
#[tokio::test]
async fn a_batch_of_which_more_is_freed_than_it_counted_leaves_nothing_behind() {
    let server = RedisServer::shared().await.unwrap();
    let mut history = History::start(server).await;
    let entries = vec![(Entry::Pending, 1, 0, 0, 1), (Entry::Holder, 2, 0, 0, 0)];
    for step in [
        Step::Rebuild(SMALL, entries),
        Step::Release(vec![(2, 0, 0), (1, 0, 1)]),
        Step::Settle(vec![0]),
    ] {
        history.apply(step).await.unwrap();
    }
    assert_eq!(history.model.meta.unwrap().pending, 0);
}

const SMALL: Applied = Applied {
    quantity: 3,
    revision: 1,
    paused: false,
    window: Window::Within,
};

struct History {
    fixture: Fixture,
    raw: MultiplexedConnection,
    model: Model,
    batches: Vec<BatchId>,
    epoch: Epoch,
}

impl History {
    async fn start(server: &RedisServer) -> Self {
        let fixture = Fixture::on(&server.settings()).await;
        Self {
            batches: vec![fixture.batch()],
            fixture,
            raw: server.connection().await.unwrap(),
            model: Model::default(),
            epoch: EPOCH,
        }
    }

    async fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reserve(claims) => self.reserve(&claims).await?,
            Step::Release(claims) => {
                let claims: Vec<_> = claims
                    .iter()
                    .map(|&(user, age, index)| (user_id(user), self.reservation(age, index)))
                    .collect();
                let answer = self.fixture.store.release(&self.fixture.campaign, &claims).await;
                prop_assert_eq!(answer.unwrap(), self.model.release(&claims));
            }
            Step::Settle(ages) => {
                let batches: Vec<_> = ages.iter().map(|&age| self.old_batch(age)).collect();
                let answer = self.fixture.store.settle(&self.fixture.campaign, &batches).await;
                prop_assert_eq!(answer.unwrap(), self.model.settle(&batches));
            }
            Step::Restock(user, request, age) => {
                let (user, request, epoch) = (user_id(user), request_id(user, request), self.old_epoch(age));
                let answer = self
                    .fixture
                    .store
                    .restock(&self.fixture.campaign, &user, request, epoch)
                    .await;
                prop_assert_eq!(answer.unwrap(), self.model.restock(&user, request, epoch));
            }
            Step::Configure(applied, age, ahead) => {
                let epoch = self.old_epoch(age);
                let (store, campaign) = (&self.fixture.store, &self.fixture.campaign);
                let configuration = configuration(applied, epoch);
                let answer = if ahead {
                    store.configure_ahead(campaign, &configuration).await
                } else {
                    store.configure(campaign, &configuration).await
                };
                let wanted = self.model.configure(epoch, &terms(applied), status(applied), ahead);
                prop_assert_eq!(answer.unwrap(), wanted);
            }
            Step::Begin(change) => {
                let epoch = Epoch(self.epoch.0 + change);
                self.epoch = self.epoch.max(epoch);
                self.begin(epoch).await?;
            }
            Step::Append(entries, age) => self.append(&entries, self.old_epoch(age)).await?,
            Step::Commit(applied, age, more) => self.commit(applied, self.old_epoch(age), more).await?,
            Step::Rebuild(applied, entries) => {
                self.epoch.0 += 1;
                self.begin(self.epoch).await?;
                self.append(&entries, self.epoch).await?;
                self.commit(applied, self.epoch, 0).await?;
            }
            Step::Flush => {
                let keys = self.all_keys().await;
                if !keys.is_empty() {
                    redis::cmd("DEL").arg(keys).exec_async(&mut self.raw).await.unwrap();
                }
                self.model = Model::default();
            }
            Step::Lose(which) => {
                let keys = self.fixture.keys();
                let key = [keys.meta, keys.occupied, keys.users][which].clone();
                redis::cmd("DEL").arg(key).exec_async(&mut self.raw).await.unwrap();
                match which {
                    0 => self.model.meta = None,
                    1 => self.model.slots.occupied = None,
                    _ => self.model.slots.users = None,
                }
            }
            Step::ChangeServer => {
                if let Some(meta) = &mut self.model.meta {
                    meta.this_server = false;
                    let mut command = redis::cmd("HSET");
                    command.arg(self.fixture.keys().meta).arg("server").arg("0".repeat(40));
                    command.exec_async(&mut self.raw).await.unwrap();
                }
            }
            Step::Remove(ours) => {
                let id = if ours { self.fixture.id } else { CampaignId(Uuid::nil()) };
                self.fixture.store.remove(&self.fixture.campaign, id).await.unwrap();
                self.model.remove(id);
            }
            Step::ScriptFlush => {
                redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .exec_async(&mut self.raw)
                    .await
                    .unwrap();
            }
        }
        self.compare().await
    }

    async fn reserve(&mut self, claims: &[(u8, u8)]) -> Result<(), TestCaseError> {
        let batch = self.fixture.batch();
        self.batches.push(batch.clone());
        let claims: Vec<_> = claims
            .iter()
            .map(|&(user, request)| (user_id(user), request_id(user, request)))
            .collect();
        let answer = self
            .fixture
            .store
            .reserve(&self.fixture.campaign, &batch, &claims)
            .await
            .unwrap();
        match (answer, self.model.reserve(&batch, &claims)) {
            (ReserveAnswer::Judged(reserved), Ok(outcomes)) => {
                prop_assert_eq!(reserved.outcomes, outcomes);
                prop_assert_eq!(reserved.campaign, self.fixture.id);
                prop_assert_eq!(Some(reserved.epoch), self.model.meta.as_ref().map(|meta| meta.epoch));
            }
            (ReserveAnswer::Refused(Refusal::NotOpenYet(_)), Err(None)) => {}
            (ReserveAnswer::Refused(refusal), Err(Some(wanted))) => prop_assert_eq!(refusal, wanted),
            (answer, wanted) => prop_assert!(false, "answered {:?}, the model says {:?}", answer, wanted),
        }
        Ok(())
    }

    async fn begin(&mut self, epoch: Epoch) -> Result<(), TestCaseError> {
        let Fixture {
            store, campaign, id, ..
        } = &self.fixture;
        let answer = store.rebuild_begin(campaign, *id, epoch).await.unwrap();
        prop_assert_eq!(answer, self.model.begin(*id, epoch));
        Ok(())
    }

    async fn append(&mut self, entries: &[(Entry, u8, u8, usize, u16)], epoch: Epoch) -> Result<(), TestCaseError> {
        let entries: Vec<_> = entries
            .iter()
            .map(|&(kind, user, request, age, index)| {
                let (request, held) = (request_id(user, request), self.reservation(age, index));
                match kind {
                    Entry::Holder => RebuiltEntry::Holder(user_id(user), request, held),
                    Entry::Canceled => RebuiltEntry::Canceled(user_id(user), request),
                    Entry::Pending => RebuiltEntry::Pending(user_id(user), request, held, 1),
                }
            })
            .collect();
        let answer = self
            .fixture
            .store
            .rebuild_append(&self.fixture.campaign, epoch, &entries)
            .await;
        prop_assert_eq!(answer.unwrap(), self.model.append(epoch, &entries));
        Ok(())
    }

    async fn commit(&mut self, applied: Applied, epoch: Epoch, more: u64) -> Result<(), TestCaseError> {
        let staged = self.model.staging.get(&epoch).and_then(|slots| slots.users.as_ref());
        let users = staged.map_or(0, |users| users.len() as u64) + more;
        let rebuilt = RebuiltState {
            campaign: self.fixture.id,
            configuration: configuration(applied, epoch),
            users,
        };
        let answer = self
            .fixture
            .store
            .rebuild_commit(&self.fixture.campaign, &rebuilt)
            .await;
        let wanted = self
            .model
            .commit(self.fixture.id, epoch, &terms(applied), status(applied), users);
        prop_assert_eq!(answer.unwrap(), wanted);
        Ok(())
    }

    /// What Redis holds is what the model holds, no key lives for ever, and the numbers agree with each other.
    async fn compare(&mut self) -> Result<(), TestCaseError> {
        let mut found = Model {
            meta: self.read_meta().await,
            slots: self.read_slots(None).await,
            staging: BTreeMap::new(),
        };
        let epochs: Vec<_> = self.model.staging.keys().copied().collect();
        for epoch in epochs {
            let slots = self.read_slots(Some(epoch)).await;
            found.staging.insert(epoch, slots);
        }
        if let (Some(found), Some(model)) = (&mut found.meta, &self.model.meta)
            && let (Some(terms), Some(wanted)) = (&mut found.terms, &model.terms)
        {
            // Redis has times, the model has where now lies between them; `reserve` tells them apart.
            terms.window = wanted.window;
        }
        prop_assert_eq!(&found, &self.model);

        for key in self.all_keys().await {
            let life: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut self.raw).await.unwrap();
            prop_assert!(life > 0, "{} has the TTL {}", key, life);
        }
        self.compare_views().await?;

        if self.model.judge().is_ok() {
            let Some(meta) = &found.meta else { return Ok(()) };
            let holders = found.slots.users.iter().flatten();
            let holders = holders
                .filter(|(_, marker)| matches!(marker, campaign::redis::state::Marker::Holds(..)))
                .count();
            prop_assert_eq!(found.slots.occupied, Some(holders as i64));
            prop_assert_eq!(meta.pending, found.slots.pending_claims.values().sum::<i64>());
            prop_assert!(holders as i64 <= meta.terms.as_ref().map_or(0, |terms| terms.quantity));
        }
        Ok(())
    }

    /// The reading calls answer what the model holds.
    async fn compare_views(&mut self) -> Result<(), TestCaseError> {
        let Fixture { store, campaign, .. } = &self.fixture;
        let usable = self.model.judge();
        match (store.state(campaign).await.unwrap(), usable) {
            (StateAnswer::Present(numbers), Ok(())) => {
                let meta = self.model.meta.as_ref().unwrap();
                let terms = meta.terms.as_ref().unwrap();
                prop_assert_eq!(numbers.campaign, meta.id);
                prop_assert_eq!(numbers.epoch, meta.epoch);
                prop_assert_eq!(Some(numbers.status), meta.status);
                prop_assert_eq!(numbers.revision, terms.revision);
                prop_assert_eq!(numbers.quantity, terms.quantity);
                prop_assert_eq!(Some(numbers.taken), self.model.slots.occupied);
                prop_assert_eq!(numbers.pending, meta.pending);
                prop_assert_eq!(
                    numbers.oldest_pending_ms.is_some(),
                    !self.model.slots.pending.is_empty()
                );
            }
            (StateAnswer::Rebuilding { epoch, .. }, Err(Unusable::Rebuilding)) => {
                prop_assert_eq!(Some(epoch), self.model.meta.as_ref().map(|meta| meta.epoch));
            }
            (StateAnswer::NotInitialized, Err(Unusable::NotInitialized)) => {}
            (answer, wanted) => prop_assert!(false, "answered {:?}, the model says {:?}", answer, wanted),
        }
        let user = user_id(0);
        prop_assert_eq!(store.marker(campaign, &user).await.unwrap(), self.model.marker(&user));
        let batches = &self.batches[self.batches.len().saturating_sub(3)..];
        let claims = store.claims_of(campaign, batches).await.unwrap();
        prop_assert_eq!(claims, self.model.claims_of(batches));
        let expired = store.expired_batches(campaign, -1, 1_000).await.unwrap();
        let expired = expired.map(|batches| batches.into_iter().collect());
        prop_assert_eq!(expired, usable.ok().map(|()| self.model.slots.pending.clone()));
        Ok(())
    }

    async fn read_meta(&mut self) -> Option<Meta> {
        let key = self.fixture.keys().meta;
        let fields: HashMap<String, String> = redis::cmd("HGETALL").arg(key).query_async(&mut self.raw).await.unwrap();
        let number = |field: &str| fields.get(field).map(|text| text.parse::<i64>().unwrap());
        Some(Meta {
            id: fields.get("id")?.parse().unwrap(),
            epoch: Epoch(number("epoch")?),
            status: match fields["status"].as_str() {
                "open" => Some(StateStatus::Open),
                "paused" => Some(StateStatus::Paused),
                "rebuilding" => None,
                other => panic!("status {other}"),
            },
            this_server: fields["server"] != "0".repeat(40),
            terms: number("revision").map(|revision| Terms {
                revision,
                quantity: number("quantity").unwrap(),
                window: Window::Within,
            }),
            pending: number("pending").unwrap_or(0),
        })
    }

    async fn read_slots(&mut self, epoch: Option<Epoch>) -> Slots {
        let keys = self.fixture.keys();
        let keys = epoch.map_or_else(|| keys.clone(), |epoch| keys.staging(epoch));
        type Read = (Option<i64>, HashMap<String, String>, Vec<String>, HashMap<String, i64>);
        let (occupied, mut users, pending, claims): Read = redis::pipe()
            .get(&keys.occupied)
            .hgetall(&keys.users)
            .zrange(&keys.pending, 0, -1)
            .hgetall(&keys.pending_claims)
            .query_async(&mut self.raw)
            .await
            .unwrap();
        let present = users.remove("").is_some();
        assert!(present || users.is_empty(), "the empty field is always there");
        let users = users
            .iter()
            .map(|(user, marker)| (user.parse().unwrap(), read_marker(marker)));
        Slots {
            occupied,
            users: present.then(|| users.collect()),
            pending: pending.iter().map(|batch| batch.parse().unwrap()).collect(),
            pending_claims: claims.iter().map(|(batch, &n)| (batch.parse().unwrap(), n)).collect(),
        }
    }

    async fn all_keys(&mut self) -> Vec<String> {
        let pattern = format!("{}:*", self.fixture.naming.prefix());
        redis::cmd("KEYS")
            .arg(pattern)
            .query_async(&mut self.raw)
            .await
            .unwrap()
    }

    fn old_batch(&self, age: usize) -> BatchId {
        self.batches[self.batches.len().saturating_sub(age + 1)].clone()
    }

    fn old_epoch(&self, age: i64) -> Epoch {
        Epoch(self.epoch.0 - age)
    }

    fn reservation(&self, age: usize, index: u16) -> Reservation {
        self.old_batch(age).reservation(index)
    }
}

fn user_id(n: u8) -> UserId {
    format!("user {n}").parse().unwrap()
}

fn request_id(user: u8, n: u8) -> RequestId {
    RequestId(Uuid::from_u128(u128::from(user) << 8 | u128::from(n)))
}

fn read_marker(text: &str) -> campaign::redis::state::Marker {
    use campaign::redis::state::Marker;
    let (request, held) = text.split_once(' ').unwrap();
    let request = request.parse().unwrap();
    match held {
        "canceled" => Marker::Canceled(request),
        reservation => Marker::Holds(request, reservation.parse().unwrap()),
    }
}

fn status(applied: Applied) -> StateStatus {
    if applied.paused {
        StateStatus::Paused
    } else {
        StateStatus::Open
    }
}

fn terms(applied: Applied) -> Terms {
    Terms {
        revision: applied.revision,
        quantity: applied.quantity,
        window: applied.window,
    }
}

fn configuration(applied: Applied, epoch: Epoch) -> Configuration {
    let hour = SignedDuration::from_hours(1);
    let (opens_at, closes_at) = match applied.window {
        Window::Within => (None, None),
        Window::Before => (Some(Timestamp::now() + hour), None),
        Window::After => (None, Some(Timestamp::now() - hour)),
    };
    Configuration {
        epoch,
        revision: applied.revision,
        quantity: applied.quantity,
        opens_at,
        closes_at,
        ttl_ms: TTL_MS,
        paused: applied.paused,
    }
}
