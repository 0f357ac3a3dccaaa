//! A whole chain of one test's own: campaign, intakes and workers in this process, on the shared servers.

use std::{collections::BTreeSet, time::Duration};

use campaign::{
    align::Aligner,
    identity::CampaignId,
    kafka::offsets::TopicReader,
    name::CampaignName,
    postgres::{
        campaign::{CampaignRow, CampaignTerms, OnCancel, OnDeadLetter},
        database::Database,
    },
    rebuild::Rebuilder,
    redis::{
        lock::Locks,
        state::{StateAnswer, StateNumbers, StateStore},
    },
};
use futures::{StreamExt, stream};
use intake::settings::{DoorSettings, IntakeSettings};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::{PgPool, Row};
use testkit::{
    eventually::eventually,
    installation::{TestInstallation, campaign_name},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use worker::settings::{Tuning, WorkerSettings};

/// How long anything may take on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// An installation with one campaign.
pub struct Chain {
    pub on: TestInstallation,
    pub campaign: CampaignName,
    pub state: StateStore,
    pub database: Database,
    pub aligner: Aligner,
    pub pool: PgPool,
}

/// An intake that runs until it is dropped.
pub struct Door {
    pub url: String,
    pub internal_url: String,
    client: reqwest::Client,
    campaign: CampaignName,
    _stop: Option<DropGuard>,
}

/// A worker that runs until it is dropped or stopped.
pub struct Worker {
    stop: CancellationToken,
    running: Option<worker::startup::RunningWorker>,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub status: u16,
    /// `result` of a 202, `code` of a problem; empty where no answer came.
    pub word: String,
    pub request: Option<String>,
    pub unknown: bool,
}

impl Told {
    pub fn is(&self, word: &str) -> bool {
        self.word == word
    }
}

/// Terms of a plain campaign.
pub fn terms(quantity: i64) -> CampaignTerms {
    CampaignTerms {
        quantity,
        ttl_ms: 3_600_000,
        opens_at: None,
        closes_at: None,
        paused: false,
        on_cancel: OnCancel::Restock,
        on_dead_letter: OnDeadLetter::Park,
        code_prefix: "T".into(),
        valid_for_ms: None,
        details: json!({}),
    }
}

impl Chain {
    /// On the shared servers, with an open campaign of `quantity`.
    pub async fn open(quantity: i64) -> Self {
        let chain = Self::on(TestInstallation::start().await.unwrap()).await;
        chain.apply(&terms(quantity)).await;
        chain
    }

    /// The same for a test that waits for no timeout.
    pub async fn patient(quantity: i64) -> Self {
        let chain = Self::on(TestInstallation::patient().await.unwrap()).await;
        chain.apply(&terms(quantity)).await;
        chain
    }

    /// On this installation, with no campaign yet.
    pub async fn on(on: TestInstallation) -> Self {
        let (state, aligner) = aligner(&on).await;
        Self {
            campaign: campaign_name(),
            database: aligner.database.clone(),
            pool: PgPool::connect(&on.postgres.postgres_url).await.unwrap(),
            state,
            aligner,
            on,
        }
    }

    pub async fn apply(&self, terms: &CampaignTerms) -> CampaignRow {
        self.aligner.apply(&self.campaign, terms).await.unwrap().campaign
    }

    pub fn intake_settings(&self) -> IntakeSettings {
        IntakeSettings {
            installation: self.on.installation.clone(),
            redis: self.on.redis.clone(),
            kafka: self.on.kafka.clone(),
            postgres: self.on.postgres.clone(),
            door: DoorSettings {
                listen: ([127, 0, 0, 1], 0).into(),
                internal_listen: ([127, 0, 0, 1], 0).into(),
                max_in_flight: 20_000,
                max_in_flight_per_campaign: 20_000,
                campaign_refresh: Duration::from_millis(200),
            },
        }
    }

    pub fn worker_settings(&self) -> WorkerSettings {
        WorkerSettings {
            installation: self.on.installation.clone(),
            redis: self.on.redis.clone(),
            kafka: self.on.kafka.clone(),
            postgres: self.on.postgres.clone(),
            tuning: Tuning {
                internal_listen: ([127, 0, 0, 1], 0).into(),
                processing_rate: 0,
                batch_claims: 1_000,
                window_records: 2_048,
                window_claims: 32_768,
                lock_lease: Duration::from_secs(10),
                lock_keep: Duration::from_secs(1),
                campaign_idle: Duration::from_secs(60),
                session_timeout: Duration::from_secs(10),
                sweep_interval: Duration::from_millis(200),
                relay_batch: 1_000,
                shutdown_grace: Duration::from_secs(20),
            },
        }
    }

    pub async fn intake(&self) -> Door {
        self.intake_with(self.intake_settings()).await
    }

    pub async fn intake_with(&self, settings: IntakeSettings) -> Door {
        let stop = CancellationToken::new();
        let running = intake::start(settings, stop.clone()).await.unwrap();
        Door {
            _stop: Some(stop.drop_guard()),
            ..self.door_at(running.public_address.port(), running.internal_address.port())
        }
    }

    /// A door that runs elsewhere.
    pub fn door_at(&self, port: u16, internal_port: u16) -> Door {
        Door {
            url: format!("http://127.0.0.1:{port}"),
            internal_url: format!("http://127.0.0.1:{internal_port}"),
            client: reqwest::Client::new(),
            campaign: self.campaign.clone(),
            _stop: None,
        }
    }

    pub async fn worker(&self) -> Worker {
        self.worker_with(self.worker_settings()).await
    }

    pub async fn worker_with(&self, settings: WorkerSettings) -> Worker {
        let stop = CancellationToken::new();
        let running = worker::startup::start(settings, stop.clone()).await.unwrap();
        Worker {
            stop,
            running: Some(running),
        }
    }

    pub async fn numbers(&self) -> StateNumbers {
        match self.state.state(&self.campaign).await.unwrap() {
            StateAnswer::Present(numbers) => numbers,
            other => panic!("no state: {other:?}"),
        }
    }

    /// (user, request id) of every row.
    pub async fn rows(&self) -> BTreeSet<(String, String)> {
        let row = self.database.campaign(&self.campaign).await.unwrap().unwrap();
        self.rows_of(row.id).await
    }

    /// The same of a campaign that may be live no more.
    pub async fn rows_of(&self, campaign: CampaignId) -> BTreeSet<(String, String)> {
        sqlx::query("SELECT user_id, id::text FROM coupon WHERE campaign_id = $1")
            .bind(campaign.0)
            .fetch_all(&self.pool)
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect()
    }

    pub async fn count(&self, query: &'static str) -> i64 {
        sqlx::query(query).fetch_one(&self.pool).await.unwrap().get(0)
    }

    /// Makes Redis know the reserve script. Where answers are held, the first one would be that it does not.
    pub async fn load_reserve(&self) {
        let batch = campaign::identity::Instance::random().batch(0);
        self.state.reserve(&self.campaign, &batch, &[]).await.unwrap();
    }

    /// Whether a session waits for a lock with a statement like this.
    pub async fn waits_for_a_lock(&self, statement: &str) -> bool {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event_type = 'Lock' AND query LIKE $1";
        let row = sqlx::query(waiting)
            .bind(statement)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        row.get::<i64, _>(0) > 0
    }

    /// Waits until nothing is pending and every row is there: `issued` of them, and the rest is free.
    pub async fn settles_with(&self, issued: i64) {
        eventually(LIMIT, format!("{issued} coupons and nothing pending"), async || {
            let StateAnswer::Present(state) = self.state.state(&self.campaign).await.ok()? else {
                return None;
            };
            let row = self.database.campaign(&self.campaign).await.ok()??;
            (state.pending == 0 && state.taken == issued && row.issued == issued).then_some(())
        })
        .await;
    }

    /// Who was told SUCCESS has his row, once everything that is in Kafka is consumed.
    pub async fn assert_kept(&self, told: &[(&str, &Told)]) {
        crate::records::consumed(self).await;
        let told: Vec<_> = told
            .iter()
            .map(|(user, told)| (user.to_string(), (*told).clone()))
            .collect();
        let rows = self.rows().await;
        let lost: Vec<_> = successes(&told)
            .into_iter()
            .filter(|success| !rows.contains(success))
            .collect();
        assert!(lost.is_empty(), "a SUCCESS was taken back: {lost:?}");
    }

    /// The equation, when it is quiet.
    pub async fn assert_conserved(&self) {
        let state = self.numbers().await;
        let row = self.database.campaign(&self.campaign).await.unwrap().unwrap();
        assert_eq!(state.pending, 0, "pending: {state:?}");
        assert_eq!(
            state.available() + row.issued + row.parked,
            row.terms.quantity,
            "{state:?} {row:?}"
        );
        let rows = self.rows().await;
        let users: BTreeSet<&String> = rows.iter().map(|(user, _)| user).collect();
        assert_eq!(rows.len(), users.len(), "two coupons of one user");
        assert_eq!(
            self.count("SELECT count(*) FROM rejection WHERE reason IN ('OUT_OF_STOCK', 'ALREADY_ISSUED')")
                .await,
            0,
            "a SUCCESS was taken back"
        );
    }
}

impl Door {
    /// Claims until the answer is one that stays.
    pub async fn claim_until_answered(&self, user: &str) -> Told {
        eventually(LIMIT, "an answer that stays", async || {
            let told = self.claim_with(user, Some(user)).await;
            (told.status != 503 && !told.is("PENDING")).then_some(told)
        })
        .await
    }

    /// One claim; an answer that does not come is `unknown`.
    pub async fn claim(&self, user: &str) -> Told {
        self.claim_with(user, None).await
    }

    pub async fn claim_with(&self, user: &str, key: Option<&str>) -> Told {
        let mut request = self
            .client
            .post(format!("{}/coupon-issues", self.url))
            .json(&json!({"campaign": self.campaign.to_string(), "userId": user}));
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        match request.send().await {
            Ok(response) => told(response).await,
            Err(_) => Told {
                status: 0,
                word: String::new(),
                request: None,
                unknown: true,
            },
        }
    }

    /// Claims of many users, `at_once` of them at a time.
    pub async fn burst(&self, users: impl IntoIterator<Item = String>, at_once: usize) -> Vec<(String, Told)> {
        stream::iter(users)
            .map(|user| async move {
                let told = self.claim(&user).await;
                (user, told)
            })
            .buffer_unordered(at_once)
            .collect()
            .await
    }

    pub async fn status(&self, user: &str, request: &str) -> (StatusCode, Value) {
        let response = self
            .client
            .get(format!("{}/coupon-issues/{request}", self.url))
            .query(&[("campaign", self.campaign.to_string().as_str()), ("userId", user)])
            .send()
            .await
            .unwrap();
        let status = response.status();
        (status, response.json().await.unwrap())
    }

    pub async fn cancel(&self, request: &str) -> StatusCode {
        let url = format!("{}/coupons/{request}/cancel", self.internal_url);
        self.client.post(url).send().await.unwrap().status()
    }
}

async fn told(response: reqwest::Response) -> Told {
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap_or_default();
    let text = |key: &str| body[key].as_str().map(str::to_owned);
    Told {
        status,
        word: text("result").or_else(|| text("code")).unwrap_or_default(),
        request: text("requestId"),
        unknown: body["outcome"] == "unknown",
    }
}

impl Worker {
    /// A line of its metrics, as a number.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.running.as_ref().unwrap().metrics().encode().unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(running) = self.running.take() {
            running.wait().await.unwrap();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// (user, request id) of those who were told SUCCESS.
pub fn successes(told: &[(String, Told)]) -> BTreeSet<(String, String)> {
    told.iter()
        .filter(|(_, told)| told.is("SUCCESS"))
        .map(|(user, told)| (user.clone(), told.request.clone().unwrap()))
        .collect()
}

pub fn how_many(told: &[(String, Told)], word: &str) -> usize {
    told.iter().filter(|(_, told)| told.is(word)).count()
}

pub fn users(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    range.map(|i| format!("user-{i}"))
}

pub async fn aligner(on: &TestInstallation) -> (StateStore, Aligner) {
    let redis = on.redis().await.unwrap();
    let database = on.database().await.unwrap();
    let state = StateStore::new(redis.clone(), on.naming.clone());
    let rebuilder = Rebuilder {
        state: state.clone(),
        locks: Locks::new(redis),
        database: database.clone(),
        reader: TopicReader::new(&on.kafka, LIMIT).unwrap(),
        naming: on.naming.clone(),
        settle_after: on.installation.settle_after(),
    };
    let aligner = Aligner {
        database,
        state: state.clone(),
        rebuilder,
    };
    (state, aligner)
}

/// Runs `each` for all of `count` at once and gathers the answers.
pub async fn at_once<T, F>(count: usize, each: impl Fn(usize) -> F) -> Vec<T>
where
    F: Future<Output = T>,
{
    futures::future::join_all((0..count).map(each)).await
}
