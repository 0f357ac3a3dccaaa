//! A campaign of ten coupons with eight claims persisted, settled and published, one of them used and one canceled and
//! restocked. The worker is gone by then, so that nobody repairs what a test spoils.

use std::{collections::BTreeSet, time::Duration};

use campaign::{
    align::Aligner,
    identity::{Instance, RequestId, UserId},
    kafka::{
        offsets::TopicReader,
        producer::{Delivery, Outgoing, Producer},
    },
    name::CampaignName,
    postgres::{
        campaign::{CampaignRow, CampaignTerms, OnCancel, OnDeadLetter},
        coupon::{CouponKey, Redemption},
        database::Database,
    },
    rebuild::Rebuilder,
    record::{ClaimRecord, RecordedClaim, VERSION},
    redis::{
        lock::Locks,
        state::{ReserveAnswer, ReserveOutcome, StateStore},
    },
};
use clap::Parser;
use coupon::{
    audit::{self, Audit, FindingKind, Sources, Successes},
    connections::InstallationArguments,
};
use testkit::{
    eventually::eventually,
    installation::{TestInstallation, campaign_name},
    postgres::PostgresServer,
    redis::RedisServer,
};
use tokio_util::sync::CancellationToken;
use worker::settings::{Tuning, WorkerSettings};

const LIMIT: Duration = Duration::from_secs(60);

/// The installation and its one campaign.
pub struct Stage {
    pub installation: TestInstallation,
    pub sources: Sources,
    pub campaign: CampaignName,
    pub state: StateStore,
    database: Database,
    producer: Producer,
}

#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    tuning: Tuning,
}

pub fn user(n: usize) -> UserId {
    format!("user-{n}").parse().unwrap()
}

impl Stage {
    /// The campaign, open and unclaimed.
    pub async fn open() -> Self {
        let installation = TestInstallation::start().await.unwrap();
        let database = installation.database().await.unwrap();
        let redis = installation.redis().await.unwrap();
        let state = StateStore::new(redis.clone(), installation.naming.clone());
        let aligner = Aligner {
            database: database.clone(),
            state: state.clone(),
            rebuilder: Rebuilder {
                state: state.clone(),
                locks: Locks::new(redis),
                database: database.clone(),
                reader: TopicReader::new(&installation.kafka, LIMIT).unwrap(),
                naming: installation.naming.clone(),
                settle_after: installation.installation.settle_after(),
            },
        };
        let campaign = campaign_name();
        aligner.apply(&campaign, &terms()).await.unwrap();
        let sources = Sources::connect(&servers(&installation)).await.unwrap();
        let producer = Producer::start(&installation.kafka, LIMIT).unwrap();
        Self {
            installation,
            sources,
            campaign,
            state,
            database,
            producer,
        }
    }

    /// The campaign with its eight coupons, at rest.
    pub async fn settled() -> Self {
        let stage = Self::open().await;
        let (stop, worker) = stage.start_worker().await;
        let coupons = stage.claim(0..8).await;
        stage.rest().await;
        let key = CouponKey::Id(coupons[0].1);
        assert!(matches!(
            stage.database.use_coupon(&key).await.unwrap(),
            Redemption::Done(_)
        ));
        let canceled = stage.database.cancel_coupon(coupons[1].1).await.unwrap();
        assert!(matches!(canceled, Redemption::Done(_)));
        stage.rest().await;
        stop.cancel();
        worker.wait().await.unwrap();
        stage
    }

    pub async fn start_worker(&self) -> (CancellationToken, worker::startup::RunningWorker) {
        let arguments = ["worker", "--worker-internal-listen", "127.0.0.1:0"];
        let settings = WorkerSettings {
            installation: self.installation.installation.clone(),
            redis: self.installation.redis.clone(),
            kafka: self.installation.kafka.clone(),
            postgres: self.installation.postgres.clone(),
            tuning: Defaults::parse_from(arguments).tuning,
        };
        let stop = CancellationToken::new();
        let worker = worker::startup::start(settings, stop.clone()).await.unwrap();
        (stop, worker)
    }

    /// Reserves slots for these users as one batch.
    pub async fn reserve(&self, users: std::ops::Range<usize>) -> ClaimRecord {
        let batch = Instance::random().batch(1);
        let claims: Vec<(UserId, RequestId)> = users.map(|n| (user(n), RequestId::fresh())).collect();
        let reserved = match self.state.reserve(&self.campaign, &batch, &claims).await.unwrap() {
            ReserveAnswer::Judged(reserved) => reserved,
            ReserveAnswer::Refused(refusal) => panic!("refused: {refusal:?}"),
        };
        assert!(
            reserved
                .outcomes
                .iter()
                .all(|outcome| *outcome == ReserveOutcome::Success)
        );
        let claims = claims
            .into_iter()
            .enumerate()
            .map(|(i, (user_id, request_id))| RecordedClaim {
                i: i as u16,
                user_id,
                request_id,
            });
        ClaimRecord {
            v: VERSION,
            campaign: self.campaign.clone(),
            id: reserved.campaign,
            epoch: reserved.epoch,
            batch,
            reserved_at: reserved.at_ms,
            claims: claims.collect(),
        }
    }

    /// Publishes a record; answers where it is.
    pub async fn publish(&self, record: &ClaimRecord) -> (i32, i64) {
        let delivery = self.producer.send(&Outgoing {
            topic: &self.installation.naming.requests_topic(),
            value: &record.encode().unwrap(),
            ..Outgoing::default()
        });
        match delivery.await.unwrap() {
            Delivery::Acknowledged { partition, offset } => (partition, offset),
            other => panic!("{other:?}"),
        }
    }

    async fn claim(&self, users: std::ops::Range<usize>) -> Vec<(UserId, RequestId)> {
        let record = self.reserve(users).await;
        self.publish(&record).await;
        let claims = record.claims.into_iter();
        claims.map(|claim| (claim.user_id, claim.request_id)).collect()
    }

    async fn rest(&self) {
        eventually(LIMIT, "the campaign is settled", async || {
            let rows = self.rows().await;
            self.sources.unsettled(&rows).await.unwrap().is_quiet()
        })
        .await;
    }

    pub async fn rows(&self) -> Vec<CampaignRow> {
        self.sources.campaigns(Some(&self.campaign)).await.unwrap()
    }

    pub async fn audit(&self) -> Audit {
        audit::quiet(&self.sources, &self.rows().await, None).await.unwrap()
    }

    pub async fn audit_with(&self, successes: &Successes) -> Audit {
        audit::quiet(&self.sources, &self.rows().await, Some(successes))
            .await
            .unwrap()
    }

    /// The names that the audit finds, which must be just these.
    pub async fn assert_finds(&self, expected: &[FindingKind]) {
        let audit = self.audit().await;
        assert_eq!(kinds(&audit), expected.iter().copied().collect(), "{audit}");
    }

    /// Runs SQL past the software.
    pub async fn sql(&self, statement: &str) {
        let server = PostgresServer::shared().await.unwrap();
        let url = &self.installation.postgres.postgres_url;
        let (_, database) = url.rsplit_once('/').unwrap();
        server.execute(database, statement).await.unwrap();
    }

    /// Runs a Redis command past the software; `{meta}` and the like stand for the campaign's keys.
    pub async fn redis(&self, command: &[&str]) {
        let keys = self.installation.naming.state(&self.campaign);
        let mut connection = RedisServer::shared().await.unwrap().connection().await.unwrap();
        let mut raw = redis::cmd(command[0]);
        for argument in &command[1..] {
            raw.arg(match *argument {
                "{meta}" => &keys.meta,
                "{occupied}" => &keys.occupied,
                "{users}" => &keys.users,
                "{pending}" => &keys.pending,
                "{pending-claims}" => &keys.pending_claims,
                other => other,
            });
        }
        raw.exec_async(&mut connection).await.unwrap();
    }

    pub async fn coupon_of(&self, n: usize) -> RequestId {
        let coupons = self.database.coupons_of(&user(n), None, 1).await.unwrap();
        coupons[0].id
    }
}

/// Where the servers of an installation are.
pub fn servers(installation: &TestInstallation) -> InstallationArguments {
    InstallationArguments {
        installation: installation.installation.clone(),
        redis: installation.redis.clone(),
        kafka: installation.kafka.clone(),
        postgres: installation.postgres.clone(),
    }
}

pub fn kinds(audit: &Audit) -> BTreeSet<FindingKind> {
    audit.findings.iter().map(|finding| finding.kind).collect()
}

fn terms() -> CampaignTerms {
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
        details: serde_json::json!({}),
    }
}
