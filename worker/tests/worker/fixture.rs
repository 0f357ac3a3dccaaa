//! An installation with one campaign: reserves, publishes, runs workers, and looks at what became of it.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use campaign::{
    identity::{Epoch, Instance, RequestId, UserId},
    kafka::{
        offsets::TopicReader,
        producer::{Delivery, Outgoing, Producer},
    },
    name::CampaignName,
    postgres::{
        campaign::{CampaignRow, CampaignTerms, OnCancel, OnDeadLetter},
        database::Database,
    },
    rebuild::{Force, Rebuilder},
    record::{ClaimRecord, MAX_CLAIMS, RecordedClaim, VERSION},
    redis::{
        connection::Redis,
        lock::Locks,
        state::{MarkerAnswer, ReserveAnswer, ReserveOutcome, StateAnswer, StateNumbers, StateStore},
    },
};
use clap::Parser;
use sqlx::{PgPool, Row};
use testkit::{
    eventually::eventually,
    installation::{TestInstallation, campaign_name},
};
use tokio_util::sync::CancellationToken;
use worker::{
    settings::{Tuning, WorkerSettings},
    startup::{self, RunningWorker},
};

/// Nothing that a test waits for takes this long, also on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(120);

#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    tuning: Tuning,
}

/// An installation with one campaign.
pub struct Sale {
    pub installation: TestInstallation,
    pub database: Database,
    pub pool: PgPool,
    pub redis: Redis,
    pub state: StateStore,
    pub locks: Locks,
    pub producer: Producer,
    pub reader: TopicReader,
    pub campaign: CampaignRow,
    pub epoch: Epoch,
    instance: Instance,
    batches: AtomicU64,
    users: AtomicU64,
}

pub fn terms(quantity: i64) -> CampaignTerms {
    CampaignTerms {
        quantity,
        ttl_ms: 3_600_000,
        opens_at: None,
        closes_at: None,
        paused: false,
        on_cancel: OnCancel::Restock,
        on_dead_letter: OnDeadLetter::Park,
        code_prefix: "T".to_owned(),
        valid_for_ms: None,
        details: serde_json::json!({}),
    }
}

impl Sale {
    pub async fn start(quantity: i64) -> Self {
        Self::with(terms(quantity)).await
    }

    pub async fn with(terms: CampaignTerms) -> Self {
        Self::on(TestInstallation::start().await.unwrap(), terms).await
    }

    pub async fn on(installation: TestInstallation, terms: CampaignTerms) -> Self {
        let database = installation.database().await.unwrap();
        let redis = installation.redis().await.unwrap();
        let pool = PgPool::connect(&installation.postgres.postgres_url).await.unwrap();
        let campaign = database.create_campaign(&campaign_name(), &terms).await.unwrap();
        let reader = TopicReader::new(&installation.kafka, Duration::from_secs(30)).unwrap();
        eventually(LIMIT, "the new topics have their leaders", async || {
            reader.watermarks(&installation.naming.requests_topic()).await.is_ok()
        })
        .await;
        let mut sale = Self {
            state: StateStore::new(redis.clone(), installation.naming.clone()),
            locks: Locks::new(redis.clone()),
            producer: Producer::start(&installation.kafka, Duration::from_secs(30)).unwrap(),
            reader,
            installation,
            database,
            pool,
            redis,
            campaign,
            epoch: Epoch(0),
            instance: Instance::random(),
            batches: AtomicU64::new(0),
            users: AtomicU64::new(0),
        };
        sale.rebuild(&sale.campaign.name.clone()).await;
        sale.epoch = sale.numbers().await.epoch;
        sale
    }

    /// Another campaign of the same installation, as a sale that shares everything else.
    pub async fn beside(&self, terms: CampaignTerms) -> Self {
        let mut sale = Self {
            installation: self.installation.clone(),
            database: self.database.clone(),
            pool: self.pool.clone(),
            redis: self.redis.clone(),
            state: self.state.clone(),
            locks: self.locks.clone(),
            producer: self.producer.clone(),
            reader: self.reader.clone(),
            campaign: self.database.create_campaign(&campaign_name(), &terms).await.unwrap(),
            epoch: Epoch(0),
            instance: Instance::random(),
            batches: AtomicU64::new(0),
            users: AtomicU64::new(0),
        };
        sale.rebuild(&sale.campaign.name.clone()).await;
        sale.epoch = sale.numbers().await.epoch;
        sale
    }

    async fn rebuild(&self, campaign: &CampaignName) {
        let rebuilder = Rebuilder {
            state: self.state.clone(),
            locks: self.locks.clone(),
            database: self.database.clone(),
            reader: self.reader.clone(),
            naming: self.installation.naming.clone(),
            settle_after: self.installation.installation.settle_after(),
        };
        rebuilder.rebuild(campaign, Force::IfMissing).await.unwrap();
    }

    /// Settings of a worker of this installation. It sweeps often, and only what is older than any test takes from a
    /// reservation to its record.
    pub fn settings(&self) -> WorkerSettings {
        let mut tuning = Defaults::parse_from(["worker"]).tuning;
        tuning.internal_listen = "127.0.0.1:0".parse().unwrap();
        tuning.sweep_interval = Duration::from_millis(200);
        let mut installation = self.installation.installation.clone();
        installation.publish_timeout = Duration::from_secs(20);
        WorkerSettings {
            installation,
            redis: self.installation.redis.clone(),
            kafka: self.installation.kafka.clone(),
            postgres: self.installation.postgres.clone(),
            tuning,
        }
    }

    pub async fn worker(&self) -> TestWorker {
        TestWorker::start(self.settings()).await
    }

    /// `count` users that nobody else is.
    pub fn users(&self, count: usize) -> Vec<UserId> {
        let first = self.users.fetch_add(count as u64, Ordering::Relaxed);
        (first..first + count as u64)
            .map(|n| format!("user-{n}").parse().unwrap())
            .collect()
    }

    /// A record of these users that nobody has reserved.
    pub fn forged(&self, users: &[UserId]) -> ClaimRecord {
        self.record(users.iter().map(|user| (user.clone(), RequestId::fresh())).collect(), 0)
    }

    fn record(&self, claims: Vec<(UserId, RequestId)>, reserved_at: i64) -> ClaimRecord {
        ClaimRecord {
            v: VERSION,
            campaign: self.campaign.name.clone(),
            id: self.campaign.id,
            epoch: self.epoch,
            batch: self.instance.batch(self.batches.fetch_add(1, Ordering::Relaxed)),
            reserved_at,
            claims: claims
                .into_iter()
                .enumerate()
                .map(|(i, (user_id, request_id))| RecordedClaim {
                    i: i as u16,
                    user_id,
                    request_id,
                })
                .collect(),
        }
    }

    /// Reserves a slot for each of these users, who all get one, as one batch.
    pub async fn reserve(&self, users: &[UserId]) -> ClaimRecord {
        let claims: Vec<_> = users.iter().map(|user| (user.clone(), RequestId::fresh())).collect();
        let mut record = self.record(claims.clone(), 0);
        match self
            .state
            .reserve(&self.campaign.name, &record.batch, &claims)
            .await
            .unwrap()
        {
            ReserveAnswer::Judged(reserved) => {
                assert!(
                    reserved
                        .outcomes
                        .iter()
                        .all(|outcome| *outcome == ReserveOutcome::Success),
                    "{reserved:?}"
                );
                record.reserved_at = reserved.at_ms;
                record
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn publish(&self, record: &ClaimRecord) {
        self.publish_bytes(&record.encode().unwrap()).await;
    }

    /// Publishes to the claims' topic; tells where it went.
    pub async fn publish_bytes(&self, value: &[u8]) -> (i32, i64) {
        let topic = self.installation.naming.requests_topic();
        let sent = self.producer.send(&Outgoing {
            topic: &topic,
            value,
            ..Outgoing::default()
        });
        match sent.await.unwrap() {
            Delivery::Acknowledged { partition, offset } => (partition, offset),
            other => panic!("{other:?}"),
        }
    }

    /// Reserves and publishes `count` claims, `per_record` in each record.
    pub async fn claim_in_records_of(&self, per_record: usize, count: usize) -> Vec<ClaimRecord> {
        let users = self.users(count);
        let mut records = Vec::new();
        let mut sent = Vec::new();
        let topic = self.installation.naming.requests_topic();
        for users in users.chunks(per_record) {
            let record = self.reserve(users).await;
            let value = record.encode().unwrap();
            sent.push(self.producer.send(&Outgoing {
                topic: &topic,
                value: &value,
                ..Outgoing::default()
            }));
            records.push(record);
        }
        for delivery in sent {
            assert!(matches!(delivery.await.unwrap(), Delivery::Acknowledged { .. }));
        }
        records
    }

    /// Reserves and publishes `count` claims.
    pub async fn claim(&self, count: usize) -> Vec<ClaimRecord> {
        self.claim_in_records_of(MAX_CLAIMS, count).await
    }

    pub async fn numbers(&self) -> StateNumbers {
        match self.state.state(&self.campaign.name).await.unwrap() {
            StateAnswer::Present(numbers) => numbers,
            other => panic!("{other:?}"),
        }
    }

    /// Requests that are coupons of this campaign.
    pub async fn issued(&self) -> BTreeSet<RequestId> {
        sqlx::query("SELECT id FROM coupon WHERE campaign_id = $1")
            .bind(self.campaign.id.0)
            .fetch_all(&self.pool)
            .await
            .unwrap()
            .iter()
            .map(|row| RequestId(row.get(0)))
            .collect()
    }

    /// A number that a query answers; `$1` is the campaign.
    pub async fn number(&self, query: &'static str) -> i64 {
        sqlx::query(query)
            .bind(self.campaign.id.0)
            .fetch_one(&self.pool)
            .await
            .unwrap()
            .get(0)
    }

    pub async fn execute(&self, statement: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// Waits until exactly these claims have rows.
    pub async fn issued_are(&self, records: &[ClaimRecord]) {
        let wanted = requests(records);
        eventually(LIMIT, format!("{} rows", wanted.len()), async || {
            self.issued().await.len() >= wanted.len()
        })
        .await;
        assert_eq!(self.issued().await, wanted);
    }

    /// Waits until it is quiet, and holds the equation.
    pub async fn settled(&self) {
        eventually(LIMIT, "nothing is pending", async || self.numbers().await.pending == 0).await;
        self.consumed_all().await;
        let row = self.row().await;
        let numbers = self.numbers().await;
        let parked = self
            .number("SELECT count(*) FROM parked WHERE campaign_id = $1 AND discarded_at IS NULL")
            .await;
        assert_eq!(numbers.taken, row.issued + parked, "{numbers:?}");
        assert_eq!(
            row.terms.quantity,
            numbers.available() + row.issued + parked,
            "{numbers:?}"
        );
    }

    /// The projection has so many events of the campaign, after `limit` at the latest.
    pub async fn activity_is(&self, count: i64, limit: Duration) {
        eventually(limit, format!("{count} events are projected"), async || {
            self.number("SELECT count(*) FROM coupon_activity WHERE campaign_id = $1")
                .await
                == count
        })
        .await;
    }

    /// Waits until every record of the claims' topic is consumed.
    pub async fn consumed_all(&self) {
        let topic = self.installation.naming.requests_topic();
        let watermarks = self.reader.watermarks(&topic).await.unwrap();
        eventually(LIMIT, "everything is consumed", async || {
            let consumed = self.database.consumed(&topic).await.unwrap();
            watermarks
                .iter()
                .all(|(partition, marks)| consumed.get(partition).copied().unwrap_or(0) >= marks.high)
        })
        .await;
    }

    pub async fn row(&self) -> CampaignRow {
        self.database.campaign(&self.campaign.name).await.unwrap().unwrap()
    }

    pub async fn holds(&self, user: &UserId) -> bool {
        match self.state.marker(&self.campaign.name, user).await.unwrap() {
            MarkerAnswer::Present(marker) => marker.is_some(),
            MarkerAnswer::Unknown => panic!("the state is unknown"),
        }
    }

    /// Everything on a topic of this installation.
    pub async fn everything_on(&self, topic: &str) -> Vec<Vec<u8>> {
        let watermarks = self.reader.watermarks(topic).await.unwrap();
        let values = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let sink = values.clone();
        self.reader
            .read(
                topic,
                Default::default(),
                watermarks.into_iter().map(|(p, marks)| (p, marks.high)).collect(),
                move |_, _, value| {
                    sink.lock().unwrap().push(value.to_vec());
                    std::ops::ControlFlow::Continue(())
                },
            )
            .await
            .unwrap();
        values.lock().unwrap().clone()
    }
}

/// All requests of some records.
pub fn requests(records: &[ClaimRecord]) -> BTreeSet<RequestId> {
    records
        .iter()
        .flat_map(|record| record.claims.iter().map(|claim| claim.request_id))
        .collect()
}

/// A worker that stops with its test.
pub struct TestWorker {
    pub running: RunningWorker,
    stop: CancellationToken,
    _guard: tokio_util::sync::DropGuard,
}

impl TestWorker {
    pub async fn start(settings: WorkerSettings) -> Self {
        let stop = CancellationToken::new();
        let running = startup::start(settings, stop.clone()).await.unwrap();
        Self {
            running,
            _guard: stop.clone().drop_guard(),
            stop,
        }
    }

    /// Stops it as SIGTERM does, and waits for it.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, self.running.wait()).await.unwrap().unwrap();
    }

    /// A line of its metrics, as a number.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.running.metrics().encode().unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    /// The answer of its internal port: status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.running.internal_address())
            .await
            .unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\nHost: worker\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        tokio::time::timeout(LIMIT, stream.read_to_string(&mut text))
            .await
            .unwrap()
            .unwrap();
        (text[9..12].parse().unwrap(), text)
    }
}
