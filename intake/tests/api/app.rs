//! An intake of a test's own, on an installation of its own, and the worker's and operator's parts that a test plays.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{Arc, Mutex},
    time::Duration,
};

use campaign::{
    identity::{CampaignId, RequestId, UserId},
    kafka::offsets::TopicReader,
    name::CampaignName,
    postgres::{
        campaign::{CampaignRow, CampaignTerms, OnCancel, OnDeadLetter},
        database::Database,
        persist::{Advance, LocatedRecord, PersistRequest},
    },
    record::ClaimRecord,
    redis::state::{Configuration, RebuildStep, RebuiltState, StateAnswer, StateNumbers, StateStore},
};
use futures::{StreamExt, stream};
use intake::{IntakeSettings, Running, settings::DoorSettings};
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde_json::{Value, json};
use testkit::{
    eventually::eventually,
    installation::{TestInstallation, campaign_name},
    proxy::Proxy,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// For conditions that come about by themselves.
pub const SOON: Duration = Duration::from_secs(120);

/// An answer over HTTP.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Reply {
    async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, headers, body }
    }

    /// `result` of an accepted claim, `code` of a problem, `status` of a status.
    pub fn code(&self) -> &str {
        ["result", "code", "status"]
            .iter()
            .find_map(|field| self.body[field].as_str())
            .unwrap_or_else(|| panic!("no code in {self:?}"))
    }

    pub fn request_id(&self) -> RequestId {
        self.body["requestId"]
            .as_str()
            .unwrap_or_else(|| panic!("no requestId in {self:?}"))
            .parse()
            .unwrap()
    }

    pub fn outcome(&self) -> Option<&str> {
        self.body["outcome"].as_str()
    }

    /// A problem as the contract wants it.
    pub fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code()), (status, code), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!(self.headers["cache-control"], "no-store", "{self:?}");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["type"], format!("urn:coupon:problem:{code}"));
        assert_eq!(status == 503, self.headers.contains_key("retry-after"), "{self:?}");
    }
}

/// One process.
pub struct Intake {
    pub public: String,
    pub internal: String,
    pub shutdown: CancellationToken,
    pub running: Running,
    http: reqwest::Client,
}

impl Intake {
    pub async fn start(settings: IntakeSettings) -> Self {
        let shutdown = CancellationToken::new();
        let running = intake::start(settings, shutdown.clone()).await.unwrap();
        Self {
            public: format!("http://{}", running.public_address),
            internal: format!("http://{}", running.internal_address),
            shutdown,
            running,
            http: reqwest::Client::new(),
        }
    }

    pub async fn claim(&self, campaign: &CampaignName, user: &str) -> Reply {
        self.claim_body(&json!({"campaign": campaign, "userId": user}), None)
            .await
    }

    pub async fn claim_with_key(&self, campaign: &CampaignName, user: &str, key: &str) -> Reply {
        self.claim_body(&json!({"campaign": campaign, "userId": user}), Some(key))
            .await
    }

    pub async fn claim_body(&self, body: &Value, key: Option<&str>) -> Reply {
        let mut request = self.http.post(format!("{}/coupon-issues", self.public)).json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        Reply::read(request.send().await.unwrap()).await
    }

    /// Many users at once.
    pub async fn claim_all(
        &self,
        campaign: &CampaignName,
        users: impl IntoIterator<Item = String>,
    ) -> Vec<(String, Reply)> {
        stream::iter(users)
            .map(async |user| {
                let reply = self.claim(campaign, &user).await;
                (user, reply)
            })
            .buffer_unordered(512)
            .collect()
            .await
    }

    pub async fn status(&self, campaign: &CampaignName, user: &str, request: RequestId) -> Reply {
        let request = self
            .http
            .get(format!("{}/coupon-issues/{request}", self.public))
            .query(&[("campaign", campaign.to_string().as_str()), ("userId", user)]);
        Reply::read(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, &format!("{}{path}", self.public)).await
    }

    pub async fn get_internal(&self, path: &str) -> Reply {
        self.send(Method::GET, &format!("{}{path}", self.internal)).await
    }

    pub async fn post_internal(&self, path: &str) -> Reply {
        self.send(Method::POST, &format!("{}{path}", self.internal)).await
    }

    pub async fn send(&self, method: Method, url: &str) -> Reply {
        Reply::read(self.http.request(method, url).send().await.unwrap()).await
    }

    /// A claim's POST with anything in it.
    pub async fn post_raw(&self, content_type: Option<&str>, body: Vec<u8>) -> Reply {
        let mut request = self.http.post(format!("{}/coupon-issues", self.public)).body(body);
        if let Some(content_type) = content_type {
            request = request.header("Content-Type", content_type);
        }
        Reply::read(request.send().await.unwrap()).await
    }

    /// One series of `/metrics`.
    pub async fn metric(&self, series: &str) -> f64 {
        let reply = self.get_internal("/metrics").await;
        let text = reply.body.as_str().unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {series} in\n{text}"))
    }
}

/// An installation with one intake.
pub struct TestApp {
    pub installation: TestInstallation,
    pub database: Database,
    pub state: StateStore,
    pub intake: Intake,
}

impl TestApp {
    /// For a test that waits for no timeout.
    pub async fn start() -> Self {
        Self::on(TestInstallation::patient().await.unwrap(), |_| {}).await
    }

    /// `change` puts a proxy in, or other bounds. Timeouts are short.
    pub async fn start_with(change: impl FnOnce(&mut IntakeSettings)) -> Self {
        Self::on(TestInstallation::start().await.unwrap(), change).await
    }

    pub async fn on(installation: TestInstallation, change: impl FnOnce(&mut IntakeSettings)) -> Self {
        let mut settings = intake_settings(&installation);
        change(&mut settings);
        let redis = installation.redis().await.unwrap();
        Self {
            database: installation.database().await.unwrap(),
            state: StateStore::new(redis, installation.naming.clone()),
            intake: Intake::start(settings).await,
            installation,
        }
    }

    /// A live campaign with an open state, which the door knows.
    pub async fn campaign(&self, quantity: i64) -> CampaignName {
        self.campaign_with(CampaignTerms { quantity, ..terms() }).await
    }

    pub async fn campaign_with(&self, terms: CampaignTerms) -> CampaignName {
        let row = self.campaign_without_state(terms).await;
        self.build_state(&row, row.id).await;
        row.name
    }

    pub async fn campaign_without_state(&self, terms: CampaignTerms) -> CampaignRow {
        let row = self.database.create_campaign(&campaign_name(), &terms).await.unwrap();
        eventually(SOON, "the door knows the campaign", async || {
            self.intake.get(&format!("/campaigns/{}", row.name)).await.status != StatusCode::NOT_FOUND
        })
        .await;
        row
    }

    /// An empty, open state under `id`, as the first rebuild would leave it.
    pub async fn build_state(&self, row: &CampaignRow, id: CampaignId) {
        let epoch = self.database.raise_epoch(row.id).await.unwrap().unwrap().epoch;
        let begun = self.state.rebuild_begin(&row.name, id, epoch).await.unwrap();
        assert_eq!(begun, RebuildStep::Done);
        let rebuilt = RebuiltState {
            campaign: id,
            configuration: Configuration {
                epoch,
                revision: row.revision,
                quantity: row.terms.quantity,
                opens_at: row.terms.opens_at,
                closes_at: row.terms.closes_at,
                ttl_ms: row.terms.ttl_ms,
                paused: row.terms.paused,
            },
            users: 0,
        };
        let committed = self.state.rebuild_commit(&row.name, &rebuilt).await.unwrap();
        assert_eq!(committed, RebuildStep::Done);
    }

    /// The state's numbers, read past the door.
    pub async fn numbers(&self, campaign: &CampaignName) -> StateNumbers {
        match self.state.state(campaign).await.unwrap() {
            StateAnswer::Present(numbers) => numbers,
            other => panic!("{campaign} has no usable state: {other:?}"),
        }
    }

    /// All records of the installation's claims topic.
    pub async fn records(&self) -> Vec<LocatedRecord> {
        let reader = TopicReader::new(&self.installation.kafka, SOON).unwrap();
        let topic = self.installation.naming.requests_topic();
        // Right after its creation a topic's leaders may not be known everywhere.
        let watermarks = eventually(SOON, "the topic's offsets are told", async || {
            reader.watermarks(&topic).await.map(Some)
        })
        .await;
        let ends: HashMap<i32, i64> = watermarks
            .into_iter()
            .map(|(partition, watermarks)| (partition, watermarks.high))
            .collect();
        let records = Arc::new(Mutex::new(Vec::new()));
        let gathered = records.clone();
        reader
            .read(&topic, HashMap::new(), ends, move |partition, offset, value| {
                let record = ClaimRecord::decode(value).unwrap();
                gathered.lock().unwrap().push(LocatedRecord {
                    partition,
                    offset,
                    record,
                });
                ControlFlow::Continue(())
            })
            .await
            .unwrap();
        let mut records = std::mem::take(&mut *records.lock().unwrap());
        records.sort_by_key(|located| (located.partition, located.offset));
        records
    }

    /// Users of a campaign whose claims are in Kafka, sorted.
    pub async fn published(&self, campaign: &CampaignName) -> Vec<String> {
        let mut users: Vec<String> = self
            .records()
            .await
            .into_iter()
            .filter(|located| located.record.campaign == *campaign)
            .flat_map(|located| located.record.claims)
            .map(|claim| claim.user_id.to_string())
            .collect();
        users.sort();
        users
    }

    /// Plays the worker: all records of a campaign become rows, and their batches are settled.
    pub async fn persist(&self, campaign: &CampaignName) {
        let row = self.database.campaign(campaign).await.unwrap().unwrap();
        let topic = self.installation.naming.requests_topic();
        let consumption = self.database.consumption(&topic).await.unwrap();
        let records: Vec<LocatedRecord> = self
            .records()
            .await
            .into_iter()
            .filter(|located| located.record.id == row.id)
            .collect();
        let mut ends = HashMap::new();
        for located in &records {
            ends.insert(located.partition, located.offset + 1);
        }
        let advances: Vec<Advance> = ends
            .into_iter()
            .map(|(partition, to)| Advance {
                partition,
                from: consumption.next_of(partition),
                to,
                life: consumption.life,
            })
            .filter(|advance| advance.from < advance.to)
            .collect();
        let persisted = self
            .database
            .persist(&PersistRequest {
                topic: &topic,
                campaign: row.id,
                token: row.fence + 1,
                records: &records,
                dead: &HashMap::new(),
                advances: &advances,
                rests_on: &[],
            })
            .await
            .unwrap();
        assert_eq!(persisted.rejected, vec![]);
        self.state.settle(campaign, &persisted.decided).await.unwrap();
    }
}

/// Settings of an intake on free ports that learns of a new campaign at once.
pub fn intake_settings(installation: &TestInstallation) -> IntakeSettings {
    IntakeSettings {
        installation: installation.installation.clone(),
        redis: installation.redis.clone(),
        kafka: installation.kafka.clone(),
        postgres: installation.postgres.clone(),
        door: DoorSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            internal_listen: "127.0.0.1:0".parse().unwrap(),
            max_in_flight: 20_000,
            max_in_flight_per_campaign: 10_000,
            campaign_refresh: Duration::from_millis(20),
        },
    }
}

/// Puts a proxy before Redis that may hold requests as long as a test takes: nothing times out meanwhile.
pub fn held_by(proxy: &Proxy, settings: &mut IntakeSettings) {
    const AS_LONG_AS_IT_TAKES: Duration = Duration::from_secs(60);
    settings.redis = proxy.redis_settings();
    settings.redis.redis_timeout = AS_LONG_AS_IT_TAKES;
    settings.installation.publish_timeout = AS_LONG_AS_IT_TAKES;
}

/// Ten coupons, always open.
pub fn terms() -> CampaignTerms {
    CampaignTerms {
        quantity: 10,
        ttl_ms: 3_600_000,
        opens_at: None,
        closes_at: None,
        paused: false,
        on_cancel: OnCancel::Restock,
        on_dead_letter: OnDeadLetter::Park,
        code_prefix: "T".to_owned(),
        valid_for_ms: None,
        details: json!({}),
    }
}

pub fn user(text: &str) -> UserId {
    text.parse().unwrap()
}

/// A request that nobody made.
pub fn nobodys_request() -> RequestId {
    RequestId(Uuid::now_v7())
}

pub fn users(prefix: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |i| format!("{prefix}-{i}"))
}

/// How many replies have this code.
pub fn count(replies: &[(String, Reply)], code: &str) -> usize {
    replies.iter().filter(|(_, reply)| reply.code() == code).count()
}
