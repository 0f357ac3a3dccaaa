//! Inflicts the planned faults. Each fault heals itself when its time is over; at the end everything is healed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use campaign::rebuild::{Force, Rebuilt};
use coupon::connections::Connections;
use futures::stream::{FuturesUnordered, StreamExt};
use testkit::child::{ServerError, Signal, signal};
use tokio::{
    sync::RwLock,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    checker::PutBack,
    history::Recorder,
    links::Links,
    plan::{Fault, Server, Step, Target, Wire},
    system::System,
};

/// Between two copies of Redis that may be put back.
const KEEP_EVERY: Duration = Duration::from_secs(2);
/// How long answers to a worker are lost before its connections are cut.
const LOST_AT_COMMIT: Duration = Duration::from_millis(60);
/// What was sent before the gates were shut may still be under way.
const LATE_COMMANDS: Duration = Duration::from_millis(500);
/// How long the runbook may take after the database was put back.
const RUNBOOK_LIMIT: Duration = Duration::from_secs(60);

/// What must not happen while the database is about to lose its last seconds: a cancel, use or raise of them does not come
/// back, and says so in the documentation. Held shared by whoever does one, exclusively by the put-back.
pub type Losable = Arc<RwLock<()>>;

/// Inflicts faults on a system.
pub struct Nemesis {
    system: Arc<System>,
    connections: Arc<Connections>,
    history: Arc<Recorder>,
    losable: Losable,
    /// Held shared by faults that leave something hanging, exclusively by the put-back.
    hanging: RwLock<()>,
    inflicted: Mutex<BTreeMap<String, u64>>,
    put_backs: Mutex<Vec<PutBack>>,
}

/// Why a fault could not be inflicted.
#[derive(Debug, thiserror::Error)]
enum FaultError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("nothing to do: {0}")]
    Nothing(&'static str),
    #[error("the campaigns could not be rebuilt within {RUNBOOK_LIMIT:?} after the database was put back")]
    Runbook,
}

impl Nemesis {
    /// Has done nothing yet.
    pub fn new(
        system: Arc<System>,
        connections: Arc<Connections>,
        history: Arc<Recorder>,
        losable: Losable,
    ) -> Arc<Self> {
        Arc::new(Self {
            system,
            connections,
            history,
            losable,
            hanging: RwLock::new(()),
            inflicted: Mutex::default(),
            put_backs: Mutex::default(),
        })
    }

    /// Inflicts all steps and returns when all of them are over and healed.
    pub async fn run(&self, steps: &[Step]) {
        let began = Instant::now();
        let faults = async {
            let mut faults = FuturesUnordered::new();
            for step in steps {
                let due = sleep_until(began + step.at);
                tokio::pin!(due);
                loop {
                    tokio::select! {
                        () = &mut due => break,
                        Some(()) = faults.next() => {}
                    }
                }
                faults.push(self.inflict(step.fault));
            }
            while faults.next().await.is_some() {}
        };
        tokio::select! {
            () = faults => {}
            () = self.keep_copies() => {}
        }
    }

    /// How often each kind of fault was inflicted.
    pub fn inflicted(&self) -> BTreeMap<String, u64> {
        self.inflicted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When the database was put back.
    pub fn put_backs(&self) -> Vec<PutBack> {
        self.put_backs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn keep_copies(&self) {
        loop {
            sleep(KEEP_EVERY).await;
            if let Ok(mut redis) = self.system.redis.try_lock()
                && let Err(error) = redis.keep().await
            {
                tracing::warn!(%error, "no copy of Redis was kept");
            }
        }
    }

    async fn inflict(&self, fault: Fault) {
        tracing::info!(?fault, at_us = self.history.now(), "fault");
        match self.do_it(fault).await {
            Ok(()) => {
                let mut inflicted = self.inflicted.lock().unwrap_or_else(PoisonError::into_inner);
                *inflicted.entry(fault.kind().to_owned()).or_default() += 1;
                drop(inflicted);
                tracing::info!(?fault, at_us = self.history.now(), "healed");
            }
            Err(error) => tracing::warn!(?fault, %error, "a fault could not be inflicted"),
        }
    }

    async fn do_it(&self, fault: Fault) -> Result<(), FaultError> {
        let system = &self.system;
        match fault {
            // What dies leaves nothing hanging: also while the database is put back.
            Fault::Kill(target, pause) => Ok(system.process(target).kill(pause).await?),
            Fault::RedisFlush => Ok(system.redis.lock().await.primary().flush().await?),
            Fault::RedisScriptsForgotten => Ok(system.redis.lock().await.primary().forget_scripts().await?),
            Fault::RedisRestartEmpty => Ok(system.redis.lock().await.restart_empty().await?),
            Fault::RedisRestartOld => Ok(system.redis.lock().await.restart_old().await?),
            Fault::PostgresPutBack(after) => self.put_back(after).await,
            other => {
                let _hanging = self.hanging.read().await;
                self.hang(other).await
            }
        }
    }

    async fn hang(&self, fault: Fault) -> Result<(), FaultError> {
        let (system, links) = (&self.system, &self.system.links);
        match fault {
            Fault::Freeze(target, time) => {
                let process = system.process(target);
                if !process.freeze().await? {
                    return Err(FaultError::Nothing("it is not running"));
                }
                sleep(time).await;
                process.thaw().await?;
            }
            Fault::Restart(target) => system.process(target).restart(0).await?,
            Fault::ShiftClock(target, seconds) => system.process(target).restart(seconds).await?,
            Fault::RedisPromotion(deaf) => system.redis.lock().await.promote(deaf, links).await?,
            Fault::RedisStall(time) => {
                let redis = system.redis.lock().await;
                redis.primary().freeze()?;
                sleep(time).await;
                redis.primary().thaw()?;
            }
            Fault::KafkaKill(down) => {
                let mut kafka = system.kafka.lock().await;
                kafka.kill();
                sleep(down).await;
                kafka.restart().await?;
            }
            Fault::KafkaStall(time) => {
                let kafka = system.kafka.lock().await;
                let pid = kafka.pid().ok_or(FaultError::Nothing("the broker is down"))?;
                let send = |kind| {
                    signal(pid, kind).map_err(|source| ServerError::Io {
                        server: "Kafka",
                        what: "signal the process",
                        source,
                    })
                };
                send(Signal::Stop)?;
                sleep(time).await;
                send(Signal::Continue)?;
            }
            Fault::KafkaSlow(delay, time) => links.all_to(Server::Kafka, Wire::Delay(delay), time).await,
            Fault::KafkaAcksLost(intake, time) => {
                break_wire(links, Target::Intake(intake), Server::Kafka, Wire::LoseReplies, time).await;
            }
            Fault::KafkaRecordsLate(intake, time) => {
                break_wire(links, Target::Intake(intake), Server::Kafka, Wire::HoldRequests, time).await;
            }
            Fault::PostgresRestart => {
                let mut postgres = system.postgres.lock().await;
                postgres.kill();
                postgres.restart().await?;
            }
            Fault::PostgresCutAtCommit(worker, times) => {
                let link = links.between(Target::Worker(worker), Server::Postgres);
                for _ in 0..times {
                    let broken = link.break_it(Wire::LoseReplies).await;
                    sleep(LOST_AT_COMMIT).await;
                    link.proxy.cut();
                    drop(broken);
                    sleep(LOST_AT_COMMIT * 3).await;
                }
            }
            Fault::PostgresSlow(delay, time) => links.all_to(Server::Postgres, Wire::Delay(delay), time).await,
            Fault::Network(target, server, wire, time) => break_wire(links, target, server, wire, time).await,
            // Done elsewhere.
            Fault::Kill(..)
            | Fault::RedisFlush
            | Fault::RedisScriptsForgotten
            | Fault::RedisRestartEmpty
            | Fault::RedisRestartOld
            | Fault::PostgresPutBack(_) => {}
        }
        Ok(())
    }

    /// A copy is made, life goes on for `after`, the copy is put back, and the campaigns are rebuilt as the runbook says.
    async fn put_back(&self, after: Duration) -> Result<(), FaultError> {
        let _hanging = self.hanging.write().await;
        let _losable = self.losable.write().await;
        sleep(LATE_COMMANDS).await;
        {
            let mut postgres = self.system.postgres.lock().await;
            let copy = postgres.snapshot().await?;
            sleep(after).await;
            let from = self.history.now();
            postgres.restore(&copy).await?;
            let to = self.history.now();
            self.put_backs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(PutBack { from, to });
        }
        self.runbook().await
    }

    /// `coupon rebuild` for every live campaign.
    async fn runbook(&self) -> Result<(), FaultError> {
        let aligner = &self.connections.aligner;
        let deadline = Instant::now() + RUNBOOK_LIMIT;
        let campaigns = loop {
            match aligner.database.live_campaigns().await {
                Ok(campaigns) => break campaigns,
                Err(_) if Instant::now() < deadline => sleep(LATE_COMMANDS).await,
                Err(_) => return Err(FaultError::Runbook),
            }
        };
        let rebuilds = campaigns.iter().map(|campaign| async {
            loop {
                match aligner.rebuilder.rebuild(&campaign.name, Force::Always).await {
                    Ok(Rebuilt::Done { .. } | Rebuilt::NoCampaign) => return Ok(()),
                    _ if Instant::now() > deadline => return Err(FaultError::Runbook),
                    _ => sleep(LATE_COMMANDS).await,
                }
            }
        });
        futures::future::try_join_all(rebuilds).await.map(drop)
    }

    /// Heals whatever a fault may have left: servers run, processes run with the right time, wires are whole.
    pub async fn heal(&self) -> Result<(), ServerError> {
        for server in Server::ALL {
            for link in self.system.links.to(server) {
                link.proxy.restore();
            }
        }
        self.system.redis.lock().await.heal().await?;
        let mut kafka = self.system.kafka.lock().await;
        if kafka.pid().is_none() {
            kafka.restart().await?;
        }
        let mut postgres = self.system.postgres.lock().await;
        if postgres.pid().is_none() {
            postgres.restart().await?;
        }
        for process in &self.system.processes {
            process.thaw().await?;
            process.set_clock_right().await?;
        }
        Ok(())
    }
}

async fn break_wire(links: &Links, target: Target, server: Server, wire: Wire, time: Duration) {
    let _broken = links.between(target, server).break_it(wire).await;
    sleep(time).await;
}
