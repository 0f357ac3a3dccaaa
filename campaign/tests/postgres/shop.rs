//! A database with one campaign, and records for it.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicI64, Ordering},
};

use campaign::{
    identity::{Instance, RequestId, Reservation, UserId},
    name::CampaignName,
    postgres::{
        campaign::{CampaignRow, CampaignTerms, OnCancel, OnDeadLetter},
        coupon::Coupon,
        database::Database,
        persist::{Advance, LocatedRecord, PersistError, PersistRequest, Persisted, Reason},
    },
    record::{ClaimRecord, RecordedClaim, VERSION},
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use testkit::postgres::{FreshDatabase, PostgresServer};

pub const TOPIC: &str = "coupon.issue.requests";

pub struct Shop {
    pub database: Database,
    pub fresh: FreshDatabase,
    pub campaign: CampaignRow,
    next_offset: AtomicI64,
}

pub fn terms(quantity: i64) -> CampaignTerms {
    CampaignTerms {
        quantity,
        ttl_ms: 60_000,
        opens_at: None,
        closes_at: None,
        paused: false,
        on_cancel: OnCancel::Restock,
        on_dead_letter: OnDeadLetter::Park,
        code_prefix: "TEST".to_owned(),
        valid_for_ms: None,
        details: serde_json::json!({}),
    }
}

pub fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

pub async fn server() -> &'static PostgresServer {
    PostgresServer::shared().await.unwrap()
}

/// Claims of one record, for the transaction's other lists.
pub fn reservation(record: &LocatedRecord, index: usize) -> Reservation {
    record.record.reservation(&record.record.claims[index])
}

/// The reasons of the rejected users.
pub fn rejected(persisted: &Persisted) -> Vec<(&str, Reason)> {
    persisted
        .rejected
        .iter()
        .map(|(user, _, _, reason)| (user.as_str(), *reason))
        .collect()
}

impl Shop {
    pub async fn open(quantity: i64) -> Self {
        Self::open_with(&terms(quantity)).await
    }

    pub async fn open_with(terms: &CampaignTerms) -> Self {
        let fresh = server().await.fresh_database().await.unwrap();
        let database = Database::connect(&fresh.settings).await.unwrap();
        let name = CampaignName::new("shop", "sale").unwrap();
        let campaign = database.create_campaign(&name, terms).await.unwrap();
        Self {
            database,
            fresh,
            campaign,
            next_offset: AtomicI64::new(0),
        }
    }

    /// The campaign as it is now.
    pub async fn now(&self) -> CampaignRow {
        self.database.campaign(&self.campaign.name).await.unwrap().unwrap()
    }

    /// A connection past the software.
    pub async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.fresh.settings.postgres_url).await.unwrap()
    }

    pub async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut self.connection().await)
            .await
            .unwrap();
    }

    pub async fn count(&self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {query}")))
            .fetch_one(&mut self.connection().await)
            .await
            .unwrap()
    }

    pub async fn coupon_of(&self, name: &str) -> Option<Coupon> {
        self.database
            .coupons_of(&user(name), None, 10)
            .await
            .unwrap()
            .into_iter()
            .next()
    }

    /// A record with a claim of each user, at the next offset of partition 0.
    pub fn record(&self, users: &[&str]) -> LocatedRecord {
        LocatedRecord {
            partition: 0,
            offset: self.next_offset.fetch_add(1, Ordering::Relaxed),
            record: ClaimRecord {
                v: VERSION,
                campaign: self.campaign.name.clone(),
                id: self.campaign.id,
                epoch: self.campaign.epoch,
                batch: Instance::random().batch(1),
                reserved_at: 1_700_000_000_000,
                claims: users
                    .iter()
                    .zip(0..)
                    .map(|(name, i)| RecordedClaim {
                        i,
                        user_id: user(name),
                        request_id: RequestId::fresh(),
                    })
                    .collect(),
            },
        }
    }

    pub async fn persist(&self, records: &[LocatedRecord]) -> Persisted {
        self.persist_with(records, 1, &HashMap::new(), &[]).await.unwrap()
    }

    pub async fn persist_dead(
        &self,
        records: &[LocatedRecord],
        dead: &[Reservation],
    ) -> Result<Persisted, PersistError> {
        let dead = dead
            .iter()
            .map(|reservation| (reservation.clone(), "refused".to_owned()))
            .collect();
        self.persist_with(records, 1, &dead, &[]).await
    }

    pub async fn persist_with(
        &self,
        records: &[LocatedRecord],
        token: i64,
        dead: &HashMap<Reservation, String>,
        advances: &[Advance],
    ) -> Result<Persisted, PersistError> {
        self.database
            .persist(&PersistRequest {
                topic: TOPIC,
                campaign: self.campaign.id,
                token,
                records,
                dead,
                advances,
                rests_on: &[],
            })
            .await
    }

    /// The counters agree with the rows, and nothing is over the quantity.
    pub async fn assert_consistent(&self) {
        let campaign = self.now().await;
        assert_eq!(campaign.issued, self.count("coupon WHERE NOT slot_returned").await);
        assert_eq!(campaign.parked, self.count("parked WHERE discarded_at IS NULL").await);
        assert!(
            campaign.issued + campaign.parked <= campaign.terms.quantity,
            "{campaign:?}"
        );
    }
}
