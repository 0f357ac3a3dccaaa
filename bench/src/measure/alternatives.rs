//! The other ways to reserve, run for real: how fast each is, and what it gets wrong.
//!
//! Every way gets the same claims: more users than coupons, and every user twice at the same moment. A way that is right
//! gives exactly the quantity, once a user, and its counter says so.

use std::{
    collections::HashMap,
    rc::Rc,
    time::{Duration, Instant},
};

use campaign::{
    identity::{Instance, RequestId, UserId},
    name::CampaignName,
    record::MAX_CLAIMS,
    redis::state::{ReserveAnswer, ReserveOutcome},
};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::{
    sync::{mpsc, oneshot},
    task::LocalSet,
};

use super::Effort;
use crate::{
    article::{self, ArticleScript},
    error::{BenchError, Result},
    latency::{Latencies, Samples},
    plot::{Plot, Shape},
    report::{Findings, Section, rate},
    stage::{Installation, Stage},
};

/// Claims under way at once.
const CLIENTS: usize = 64;
/// After a try that lost, the next one waits a random part of this.
const RETRY_WITHIN: Duration = Duration::from_millis(4);
const LOCK_LIFE_MS: i64 = 3_000;

/// Gives the lock back only to its owner.
const UNLOCK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// The article's script as a function of a library.
fn function_library() -> String {
    format!(
        "#!lua name=article\nredis.register_function('article_reserve', function(KEYS, ARGV)\n{}end)",
        article::SOURCE
    )
}

/// A way to reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Commands,
    Pipelines,
    Watch,
    Lock,
    Script,
    Function,
    Ours,
}

impl Way {
    const ALL: [Self; 7] = [
        Self::Commands,
        Self::Pipelines,
        Self::Watch,
        Self::Lock,
        Self::Script,
        Self::Function,
        Self::Ours,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Commands => "commands one by one",
            Self::Pipelines => "commands in pipelines",
            Self::Watch => "WATCH, MULTI, EXEC",
            Self::Lock => "a lock around the commands",
            Self::Script => "the article's script",
            Self::Function => "the script as a Function",
            Self::Ours => "ours, grouped",
        }
    }
}

/// What a claim was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Success,
    Refused,
}

/// What became of all claims of one way.
struct Outcome {
    rate: f64,
    latencies: Latencies,
    /// Successes over the quantity.
    oversold: i64,
    /// Successes of users who had one already.
    duplicates: i64,
    /// The counter, less the users that hold a slot.
    drift: i64,
}

/// Runs all of them.
pub async fn measure(stage: &Stage, effort: Effort) -> Result<Findings> {
    let installation = stage.installation().await?;
    let users = effort.size(20_000, 5_000);
    let quantity = users as i64 / 2;
    let mut section = Section::new(
        "The alternatives for reserve",
        format!(
            "{CLIENTS} clients, {} users for {} coupons, every user twice at the same moment. Oversold: successes over the \
             quantity. Twice: successes of somebody who had one. Drift: what the counter says less the users that are \
             marked.",
            rate(users as f64),
            rate(quantity as f64),
        ),
        &[
            "way",
            "claims/s",
            "p50",
            "p99",
            "oversold",
            "twice",
            "drift of the counter",
        ],
    );
    let mut bars = Vec::new();
    for way in Way::ALL {
        let outcome = run(stage, &installation, way, users, quantity).await?;
        bars.push((way.name().to_owned(), outcome.rate));
        section.row([
            way.name().to_owned(),
            rate(outcome.rate),
            format!("{:.2} ms", outcome.latencies.p50),
            format!("{:.2} ms", outcome.latencies.p99),
            outcome.oversold.to_string(),
            outcome.duplicates.to_string(),
            outcome.drift.to_string(),
        ]);
        if way == Way::Ours && (outcome.oversold, outcome.duplicates, outcome.drift) != (0, 0, 0) {
            return Err(BenchError::Invalid("our own reserve broke its promise".to_owned()));
        }
    }
    let plot = Plot {
        title: format!("Claims/s of {CLIENTS} clients, by way to reserve"),
        shape: Shape::Bars(bars),
    };
    Ok(Findings {
        ratios: Vec::new(),
        sections: vec![section.with_plot("alternatives.svg", plot)],
    })
}

async fn run(stage: &Stage, installation: &Installation, way: Way, users: usize, quantity: i64) -> Result<Outcome> {
    let campaign = installation.campaign(quantity).await?;
    let local = LocalSet::new();
    let group = (way == Way::Ours).then(|| Group::start(&local, installation, &campaign));
    let mut clients = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        clients.push(Client {
            way,
            quantity,
            connection: stage.redis.connection().await?,
            script: ArticleScript::load(&mut stage.redis.connection().await?, &campaign.to_string()).await?,
            keys: article::keys(&campaign.to_string()),
            lock: format!("article:{{{campaign}}}:lock"),
            group: group.clone(),
        });
    }
    if way == Way::Function {
        redis::cmd("FUNCTION")
            .arg("LOAD")
            .arg("REPLACE")
            .arg(function_library())
            .query_async::<()>(&mut stage.redis.connection().await?)
            .await?;
    }
    let began = Instant::now();
    let tasks = clients.into_iter().enumerate().map(|(n, mut client)| async move {
        let mut told = Vec::new();
        let mut samples = Samples::default();
        // Clients 2k and 2k+1 claim for the same users, so that both claims of a user are there at once.
        for user in (n / 2..users).step_by(CLIENTS / 2) {
            let user = format!("user-{user}");
            let began = Instant::now();
            let answer = client.reserve(&user).await?;
            samples.add(began.elapsed());
            told.push((user, answer));
        }
        Ok::<_, BenchError>((told, samples))
    });
    let done = local.run_until(futures::future::try_join_all(tasks)).await?;
    let took = began.elapsed();

    let mut successes: HashMap<String, i64> = HashMap::new();
    let mut samples = Samples::default();
    let mut claims = 0;
    for (told, of_client) in done {
        samples.append(of_client);
        claims += told.len();
        for (user, answer) in told {
            if answer == Told::Success {
                *successes.entry(user).or_default() += 1;
            }
        }
    }
    let (counted, marked) = held(stage, installation, way, &campaign).await?;
    let all: i64 = successes.values().sum();
    Ok(Outcome {
        rate: claims as f64 / took.as_secs_f64(),
        latencies: samples.summary(),
        oversold: (all - quantity).max(0),
        duplicates: all - successes.len() as i64,
        drift: counted - marked,
    })
}

/// What the counter says, and how many users are marked.
async fn held(stage: &Stage, installation: &Installation, way: Way, campaign: &CampaignName) -> Result<(i64, i64)> {
    let mut connection = stage.redis.connection().await?;
    let (counter, users) = article::keys(&campaign.to_string());
    if way != Way::Ours {
        return Ok((connection.get(counter).await?, connection.scard(users).await?));
    }
    let keys = installation.naming.state(campaign);
    let marked: i64 = connection.hlen(&keys.users).await?;
    // The field "" is always there.
    Ok((connection.get(&keys.occupied).await?, marked - 1))
}

/// One client with a connection of its own (WATCH belongs to a connection).
struct Client {
    way: Way,
    quantity: i64,
    connection: MultiplexedConnection,
    script: ArticleScript,
    keys: (String, String),
    lock: String,
    group: Option<Group>,
}

impl Client {
    async fn reserve(&mut self, user: &str) -> Result<Told> {
        match self.way {
            Way::Commands => self.commands(user).await,
            Way::Pipelines => self.pipelines(user).await,
            Way::Watch => self.watch(user).await,
            Way::Lock => self.locked(user).await,
            Way::Script => {
                let call = self.script.call(user, self.quantity);
                Ok(told(call.query_async(&mut self.connection).await?))
            }
            Way::Function => {
                let answer = redis::cmd("FCALL")
                    .arg("article_reserve")
                    .arg(2)
                    .arg(&self.keys.0)
                    .arg(&self.keys.1)
                    .arg(user)
                    .arg(self.quantity)
                    .arg(article::TTL)
                    .query_async(&mut self.connection)
                    .await?;
                Ok(told(answer))
            }
            Way::Ours => match &self.group {
                Some(group) => group.reserve(user).await,
                None => Err(BenchError::Invalid("there is no group".to_owned())),
            },
        }
    }

    /// Look, then act: what was seen may be over by then.
    async fn commands(&mut self, user: &str) -> Result<Told> {
        let (counter, users) = &self.keys;
        if self.connection.sismember(users, user).await? {
            return Ok(Told::Refused);
        }
        let taken: Option<i64> = self.connection.get(counter).await?;
        if taken.unwrap_or_default() >= self.quantity {
            return Ok(Told::Refused);
        }
        self.connection.incr::<_, _, i64>(counter, 1).await?;
        self.connection.sadd::<_, _, i64>(users, user).await?;
        self.connection.expire::<_, bool>(counter, article::TTL).await?;
        self.connection.expire::<_, bool>(users, article::TTL).await?;
        Ok(Told::Success)
    }

    /// The same in two round trips.
    async fn pipelines(&mut self, user: &str) -> Result<Told> {
        let (counter, users) = &self.keys;
        let (holds, taken): (bool, Option<i64>) = redis::pipe()
            .sismember(users, user)
            .get(counter)
            .query_async(&mut self.connection)
            .await?;
        if holds || taken.unwrap_or_default() >= self.quantity {
            return Ok(Told::Refused);
        }
        act(&mut redis::pipe(), counter, users, user)
            .query_async::<()>(&mut self.connection)
            .await?;
        Ok(Told::Success)
    }

    /// Optimistic: every other success on the same keys makes this one start anew.
    async fn watch(&mut self, user: &str) -> Result<Told> {
        let (counter, users) = &self.keys;
        loop {
            let (_, holds, taken): ((), bool, Option<i64>) = redis::pipe()
                .cmd("WATCH")
                .arg(counter)
                .arg(users)
                .sismember(users, user)
                .get(counter)
                .query_async(&mut self.connection)
                .await?;
            if holds || taken.unwrap_or_default() >= self.quantity {
                redis::cmd("UNWATCH").query_async::<()>(&mut self.connection).await?;
                return Ok(Told::Refused);
            }
            let mut pipeline = redis::pipe();
            pipeline.atomic();
            let done: Option<redis::Value> = act(&mut pipeline, counter, users, user)
                .query_async(&mut self.connection)
                .await?;
            match done {
                Some(redis::Value::Nil) | None => {
                    tokio::time::sleep(RETRY_WITHIN.mul_f64(jitter())).await;
                }
                Some(_) => return Ok(Told::Success),
            }
        }
    }

    async fn locked(&mut self, user: &str) -> Result<Told> {
        let owner = RequestId::fresh().to_string();
        loop {
            let got: Option<String> = redis::cmd("SET")
                .arg(&self.lock)
                .arg(&owner)
                .arg("NX")
                .arg("PX")
                .arg(LOCK_LIFE_MS)
                .query_async(&mut self.connection)
                .await?;
            if got.is_some() {
                break;
            }
            tokio::time::sleep(RETRY_WITHIN.mul_f64(jitter())).await;
        }
        let told = self.commands(user).await;
        redis::cmd("EVAL")
            .arg(UNLOCK)
            .arg(1)
            .arg(&self.lock)
            .arg(&owner)
            .query_async::<()>(&mut self.connection)
            .await?;
        told
    }
}

fn act<'a>(pipeline: &'a mut redis::Pipeline, counter: &str, users: &str, user: &str) -> &'a mut redis::Pipeline {
    pipeline
        .incr(counter, 1)
        .ignore()
        .sadd(users, user)
        .ignore()
        .expire(counter, article::TTL)
        .ignore()
        .expire(users, article::TTL)
}

fn told(answer: i64) -> Told {
    if answer == 0 { Told::Success } else { Told::Refused }
}

/// A random number below 1.
fn jitter() -> f64 {
    (uuid::Uuid::new_v4().as_u128() & 0xFFFF) as f64 / 65_536.0
}

type Asked = (String, oneshot::Sender<Told>);

/// Claims that come while a call is under way go together with the next one, as at the door.
#[derive(Clone)]
struct Group {
    asked: mpsc::UnboundedSender<Asked>,
}

impl Group {
    fn start(local: &LocalSet, installation: &Installation, campaign: &CampaignName) -> Self {
        let (asked, waiting) = mpsc::unbounded_channel::<Asked>();
        let waiting = Rc::new(tokio::sync::Mutex::new(waiting));
        // Two, as at the door.
        for _ in 0..2 {
            let (state, campaign) = (installation.connections.state.clone(), campaign.clone());
            let waiting = waiting.clone();
            local.spawn_local(async move {
                let instance = Instance::random();
                for call in 0.. {
                    let mut together = Vec::new();
                    if waiting.lock().await.recv_many(&mut together, MAX_CLAIMS).await == 0 {
                        return;
                    }
                    let (claims, replies): (Vec<(UserId, RequestId)>, Vec<_>) = together
                        .into_iter()
                        .filter_map(|(user, reply)| Some(((user.parse().ok()?, RequestId::fresh()), reply)))
                        .unzip();
                    // A failed call drops its replies, and their claims fail.
                    if let Ok(ReserveAnswer::Judged(reserved)) =
                        state.reserve(&campaign, &instance.batch(call), &claims).await
                    {
                        for (reply, outcome) in replies.into_iter().zip(reserved.outcomes) {
                            let success = outcome == ReserveOutcome::Success;
                            let _ = reply.send(if success { Told::Success } else { Told::Refused });
                        }
                    }
                }
            });
        }
        Self { asked }
    }

    async fn reserve(&self, user: &str) -> Result<Told> {
        let failed = || BenchError::Invalid("a reserve call failed".to_owned());
        let (reply, told) = oneshot::channel();
        self.asked.send((user.to_owned(), reply)).map_err(|_| failed())?;
        told.await.map_err(|_| failed())
    }
}
