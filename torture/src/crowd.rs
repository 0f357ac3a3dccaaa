//! The clients: they claim, ask again, click twice, hang up, look at their status, use and cancel, and every question and
//! answer goes into the history.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use campaign::{
    identity::{CampaignId, RequestId, UserId},
    name::CampaignName,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    history::{Ask, Operation, Recorder, Told},
    nemesis::Losable,
    process::Process,
};

/// A client gives up on an answer after this.
const PATIENCE: Duration = Duration::from_secs(4);
/// Clients who are served at the same time, at most.
const AT_ONCE: usize = 1_500;
/// Claims of one click, at most.
const MOST_CLAIMS: u32 = 12;

/// A campaign that clients know.
#[derive(Clone, Debug)]
pub struct Sale {
    /// Its name.
    pub name: CampaignName,
    /// Its id, which names the requests of keys.
    pub id: CampaignId,
    /// Its share of the clients.
    pub share: f64,
}

/// An intake as a client sees it.
#[derive(Clone, Debug)]
pub struct Door {
    /// Where claims go.
    pub public: String,
    /// Where coupons are used and canceled.
    pub internal: String,
}

impl Door {
    /// Of an intake.
    pub fn of(intake: &Process) -> Self {
        Self {
            public: format!("http://127.0.0.1:{}", intake.port),
            internal: format!("http://127.0.0.1:{}", intake.internal_port),
        }
    }
}

/// All clients of a run.
pub struct Crowd {
    /// Where to.
    pub doors: Vec<Door>,
    /// For what.
    pub sales: Vec<Sale>,
    /// Draws what clients do.
    pub seed: u64,
    /// New clients a second.
    pub rate: f64,
    /// Uses and cancels wait for this.
    pub losable: Losable,
    /// What was asked and told.
    pub history: Arc<Recorder>,
    client: reqwest::Client,
    claims: AtomicU64,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body {
    result: Option<String>,
    status: Option<serde_json::Value>,
    code: Option<serde_json::Value>,
    reason: Option<String>,
    request_id: Option<RequestId>,
    outcome: Option<String>,
}

impl Crowd {
    /// Nobody has come yet.
    pub fn new(
        doors: Vec<Door>,
        sales: Vec<Sale>,
        seed: u64,
        rate: f64,
        losable: Losable,
        history: Arc<Recorder>,
    ) -> Arc<Self> {
        Arc::new(Self {
            doors,
            sales,
            seed,
            rate,
            losable,
            history,
            client: reqwest::Client::builder()
                .pool_max_idle_per_host(AT_ONCE)
                .timeout(PATIENCE)
                .build()
                .unwrap_or_default(),
            claims: AtomicU64::new(0),
        })
    }

    /// Claims that were sent so far.
    pub fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    /// Lets clients come until `stop`, and waits for the last one to go.
    pub async fn come(self: &Arc<Self>, stop: &CancellationToken) {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for number in 0_u64.. {
            let due = began + Duration::from_secs_f64(number as f64 / self.rate);
            let place = async {
                tokio::time::sleep_until(due).await;
                Arc::clone(&places).acquire_owned().await
            };
            let Some(Ok(place)) = stop.run_until_cancelled(place).await else {
                break;
            };
            let (crowd, stop) = (Arc::clone(self), stop.clone());
            clients.spawn(async move {
                let _place = place;
                // A visit is drawn from its number alone: it does not depend on what others met.
                let random = StdRng::seed_from_u64(crowd.seed.wrapping_mul(1_000_003).wrapping_add(number));
                crowd.visit(number, random, &stop).await;
            });
            while clients.try_join_next().is_some() {}
        }
        while clients.join_next().await.is_some() {}
    }

    async fn visit(&self, number: u64, mut random: StdRng, stop: &CancellationToken) {
        let Some(sale) = self.draw_sale(&mut random) else {
            return;
        };
        // Every tenth client was here before, perhaps in the same campaign.
        let number = match random.random_bool(0.1) {
            true => random.random_range(0..=number),
            false => number,
        };
        let Ok(user) = format!("u{number}").parse::<UserId>() else {
            return;
        };
        let client = Client {
            crowd: self,
            sale,
            user,
            stop,
        };
        client.visit(&mut random).await;
    }

    fn draw_sale(&self, random: &mut StdRng) -> Option<&Sale> {
        let mut draw = random.random_range(0.0..1.0);
        self.sales
            .iter()
            .find(|sale| {
                draw -= sale.share;
                draw < 0.0
            })
            .or(self.sales.last())
    }
}

/// One client of one campaign.
pub struct Client<'a> {
    crowd: &'a Crowd,
    sale: &'a Sale,
    user: UserId,
    stop: &'a CancellationToken,
}

impl<'a> Client<'a> {
    /// A client who comes by himself.
    pub fn new(crowd: &'a Crowd, sale: &'a Sale, user: UserId, stop: &'a CancellationToken) -> Self {
        Self {
            crowd,
            sale,
            user,
            stop,
        }
    }

    async fn visit(&self, random: &mut StdRng) {
        let key = format!("k{}", random.random_range(0..1_000_000_u32));
        let won = match random.random_range(0..100) {
            0..55 => self.click(Some(&key), random).await,
            55..75 => self.click(None, random).await,
            75..87 => {
                // Two clicks at the same time, with keys of their own.
                let (mut one, mut other) = (random.clone(), StdRng::seed_from_u64(random.random()));
                let second = format!("{key}-second");
                let (first, second) =
                    tokio::join!(self.click(Some(&key), &mut one), self.click(Some(&second), &mut other));
                first.or(second)
            }
            _ => {
                let patience = Duration::from_millis(random.random_range(1..400));
                let door = self.door(random);
                self.claim(door, Some(&key), patience).await;
                self.click(Some(&key), random).await
            }
        };
        let Some(request) = won else { return };
        self.follow(request, random).await;
        match random.random_range(0..100) {
            0..5 => self.redeem(Ask::Use { coupon: request }, random).await,
            5..11 => self.redeem(Ask::Cancel { coupon: request }, random).await,
            11..14 => {
                let mut other = StdRng::seed_from_u64(random.random());
                tokio::join!(
                    self.redeem(Ask::Use { coupon: request }, random),
                    self.redeem(Ask::Cancel { coupon: request }, &mut other)
                );
            }
            14..34 => {
                // Some come again, later, with the same key or another one.
                self.pause(random, 500..6_000).await;
                let again = if random.random_bool(0.5) {
                    key
                } else {
                    format!("{key}-again")
                };
                let door = self.door(random);
                self.claim(door, Some(&again), PATIENCE).await;
                self.status(self.door(random), request).await;
            }
            _ => {}
        }
    }

    fn door(&self, random: &mut StdRng) -> usize {
        random.random_range(0..self.crowd.doors.len())
    }

    /// `false`: the run is over.
    async fn pause(&self, random: &mut StdRng, millis: std::ops::Range<u64>) -> bool {
        let pause = tokio::time::sleep(Duration::from_millis(random.random_range(millis)));
        self.stop.run_until_cancelled(pause).await.is_some()
    }

    /// Claims until it is decided; the request that is the user's own, where there is one.
    async fn click(&self, key: Option<&str>, random: &mut StdRng) -> Option<RequestId> {
        for _ in 0..MOST_CLAIMS {
            let door = self.door(random);
            let told = self.claim(door, key, PATIENCE).await;
            let (word, request) = match &told {
                Some(told) => (told.word.as_str(), told.request),
                None => ("", None),
            };
            match word {
                "SUCCESS" | "DUPLICATE" => return request,
                "PENDING" => {
                    if let Some(request) = request {
                        self.status(self.door(random), request).await;
                    }
                }
                "SOLD_OUT" if random.random_bool(0.9) => return None,
                "CAMPAIGN_NOT_FOUND" => return None,
                _ => {}
            }
            if !self.pause(random, 200..2_500).await {
                return None;
            }
        }
        None
    }

    /// Looks at a request's status now and then.
    async fn follow(&self, request: RequestId, random: &mut StdRng) {
        for _ in 0..random.random_range(0..4) {
            if !self.pause(random, 30..2_500).await {
                return;
            }
            self.status(self.door(random), request).await;
        }
    }

    async fn redeem(&self, ask: Ask, random: &mut StdRng) {
        // Only once its row is there: else it is not found.
        self.pause(random, 200..2_000).await;
        let _losable = self.crowd.losable.read().await;
        let (coupon, what) = match ask {
            Ask::Use { coupon } => (coupon, "use"),
            Ask::Cancel { coupon } => (coupon, "cancel"),
            Ask::Claim { .. } | Ask::Status { .. } => return,
        };
        let door = self.door(random);
        let url = format!("{}/coupons/{coupon}/{what}", self.crowd.doors[door].internal);
        let request = self.crowd.client.post(url);
        self.ask(door, ask, request).await;
    }

    /// Looks at the status of a request.
    pub async fn status(&self, door: usize, request: RequestId) -> Option<Told> {
        let url = format!("{}/coupon-issues/{request}", self.crowd.doors[door].public);
        let asked = self.crowd.client.get(url).query(&[
            ("campaign", self.sale.name.to_string().as_str()),
            ("userId", self.user.as_str()),
        ]);
        self.ask(door, Ask::Status { request }, asked).await
    }

    /// One claim.
    pub async fn claim(&self, door: usize, key: Option<&str>, patience: Duration) -> Option<Told> {
        self.crowd.claims.fetch_add(1, Ordering::Relaxed);
        let body = serde_json::json!({"campaign": self.sale.name.to_string(), "userId": self.user.as_str()});
        let url = format!("{}/coupon-issues", self.crowd.doors[door].public);
        let mut request = self.crowd.client.post(url).json(&body).timeout(patience);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let keyed = key.map(|key| RequestId::from_key(self.sale.id, &self.user, key));
        self.ask(door, Ask::Claim { keyed }, request).await
    }

    async fn ask(&self, door: usize, ask: Ask, request: reqwest::RequestBuilder) -> Option<Told> {
        let started = self.crowd.history.now();
        let told = async {
            let response = request.send().await.ok()?;
            let http = response.status().as_u16();
            let body = response.bytes().await.ok()?;
            Some(told(http, &body))
        };
        let told = told.await;
        self.crowd.history.add(Operation {
            started,
            ended: self.crowd.history.now(),
            door,
            campaign: self.sale.name.clone(),
            user: self.user.clone(),
            ask,
            told: told.clone(),
        });
        told
    }
}

/// Reads an answer. A coupon's `code` is no problem's, so its `status` goes first.
fn told(http: u16, body: &[u8]) -> Told {
    let body: Body = serde_json::from_slice(body).unwrap_or_default();
    let text = |value: &Option<serde_json::Value>| value.as_ref().and_then(|value| value.as_str().map(str::to_owned));
    let word = body
        .result
        .or_else(|| text(&body.status))
        .or_else(|| text(&body.code))
        .unwrap_or_else(|| format!("HTTP {http}"));
    Told {
        http,
        word,
        request: body.request_id,
        reason: body.reason,
        unknown: body.outcome.as_deref() == Some("unknown"),
    }
}
