//! The reading: one look at all three servers. Anything that cannot be read ends the audit with an error: unknown is
//! neither zero nor clean.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use campaign::{
    align::is_over,
    event::{EventType, LifecycleEvent},
    identity::{CampaignId, RequestId},
    kafka::{client::KafkaError, offsets::TopicReader},
    name::CampaignName,
    naming::Naming,
    postgres::{
        audit::AuditSnapshot,
        campaign::CampaignRow,
        database::{Database, DatabaseError},
    },
    record::ClaimRecord,
    redis::{
        audit::StateAuditor,
        connection::{Redis, RedisError},
        state::StateStore,
    },
};
use jiff::Timestamp;

use super::{
    AuditError, CampaignReport, Expect,
    claims::Claims,
    events::{Complete, Events},
    finding::{Finding, FindingKind, Findings},
    offsets::TopicOffsets,
    slots::{Slots, StateReading},
    successes::Successes,
};
use crate::connections::InstallationArguments;

/// Rows of one page.
const PAGE: i64 = 5_000;
/// Repeated codes that are named.
const CODES: i64 = 100;
/// How long Kafka may take for one answer.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(15);

/// The three servers of an installation.
#[derive(Clone)]
pub struct Sources {
    pub(super) database: Database,
    pub(super) state: StateStore,
    keys: StateAuditor,
    pub(super) reader: TopicReader,
    pub(super) naming: Naming,
}

/// What one look saw.
#[derive(Debug)]
pub struct Look {
    /// What does not fit.
    pub findings: Vec<Finding>,
    /// The numbers of each campaign.
    pub campaigns: Vec<CampaignReport>,
}

/// A campaign while it is read.
struct Open {
    row: CampaignRow,
    findings: Findings,
    slots: Slots,
    claims: Claims,
    events: Events,
    coupons: u64,
    duplicate_rows: u64,
    events_wait: bool,
}

impl Sources {
    /// Connects to all three.
    pub async fn connect(arguments: &InstallationArguments) -> Result<Self, AuditError> {
        let naming = arguments.installation.naming().map_err(AuditError::Prefix)?;
        let redis = Redis::connect(&arguments.redis).await?;
        let database = Database::connect(&arguments.postgres).await?;
        database.check_migrated().await?;
        Ok(Self {
            database,
            state: StateStore::new(redis.clone(), naming.clone()),
            keys: StateAuditor::new(redis, naming.clone()),
            reader: TopicReader::new(&arguments.kafka, KAFKA_TIMEOUT)?,
            naming,
        })
    }

    /// The campaigns to look at: one by its name, or all live ones.
    pub async fn campaigns(&self, name: Option<&CampaignName>) -> Result<Vec<CampaignRow>, AuditError> {
        match name {
            None => Ok(self.database.live_campaigns().await?),
            Some(name) => match self.database.campaign(name).await? {
                Some(row) => Ok(vec![row]),
                None => Err(AuditError::NoSuchCampaign(name.clone())),
            },
        }
    }

    /// One look. `successes`, where given, are those of the one campaign that is looked at.
    pub async fn look(
        &self,
        campaigns: &[CampaignRow],
        expect: Expect,
        successes: Option<&Successes>,
    ) -> Result<Look, AuditError> {
        let mut global = Findings::of(None);
        let mut open: HashMap<CampaignId, Open> = HashMap::new();
        // Redis first: whatever it holds by now, Postgres has or will have in the snapshot that follows.
        for campaign in campaigns {
            let slots = self.read_state(campaign, expect).await?;
            open.insert(campaign.id, Open::new(campaign, slots));
        }
        let mut snapshot = self.database.audit_snapshot().await?;
        for campaign in campaigns {
            let Some(looked_at) = open.get_mut(&campaign.id) else {
                continue;
            };
            if read_rows(&mut snapshot, looked_at, successes).await? {
                continue;
            }
            // Deleted since it was listed, its state perhaps already.
            match expect {
                Expect::Running => drop(open.remove(&campaign.id)),
                Expect::Quiet => return Err(AuditError::NoSuchCampaign(campaign.name.clone())),
            }
        }
        let (requests, lifecycle) = (self.naming.requests_topic(), self.naming.lifecycle_topic());
        let mut claim_offsets = TopicOffsets {
            consumed: snapshot.consumed(&requests).await?,
            ..TopicOffsets::default()
        };
        let mut event_offsets = TopicOffsets {
            consumed: snapshot.consumed(&lifecycle).await?,
            ..TopicOffsets::default()
        };
        snapshot.close().await?;
        claim_offsets.marks = self.reader.watermarks(&requests).await?;
        event_offsets.marks = self.reader.watermarks(&lifecycle).await?;
        claim_offsets.compare(&requests, FindingKind::ClaimsNotConsumed, expect, &mut global);
        event_offsets.compare(&lifecycle, FindingKind::EventsNotConsumed, expect, &mut global);

        let open = self.read_claims(&requests, &claim_offsets, open).await?;
        let (open, unreadable) = self.read_events(&lifecycle, &event_offsets, open).await?;
        for place in unreadable {
            global.add(FindingKind::EventUnreadable, place);
        }
        let mut look = Look {
            findings: global.into_list(),
            campaigns: Vec::new(),
        };
        let whole_events = event_offsets.whole_log();
        let events_lag = event_offsets.lag() > 0;
        let mut open: Vec<Open> = open.into_values().collect();
        open.sort_by(|a, b| a.row.name.cmp(&b.row.name));
        for campaign in open {
            let complete = Complete {
                nothing_waits: expect == Expect::Quiet || !(campaign.events_wait || events_lag),
                whole_log: whole_events,
            };
            let (findings, report) = campaign.finish(complete, claim_offsets.whole_log());
            look.findings.extend(findings);
            look.campaigns.push(report);
        }
        Ok(look)
    }

    async fn read_state(&self, campaign: &CampaignRow, expect: Expect) -> Result<Slots, AuditError> {
        let name = &campaign.name;
        let mut slots = Slots::new(
            expect,
            StateReading {
                answer: self.state.state(name).await?,
                pending: self.keys.pending(name).await?,
                pending_claims: self.keys.pending_claims(name).await?,
                lasting_keys: self.keys.keys_without_ttl(name).await?,
            },
        );
        let mut cursor = None;
        loop {
            let page = self.keys.markers(name, cursor.as_deref()).await?;
            for (user, marker) in page.markers {
                slots.marker(user, marker);
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        slots.markers_end();
        Ok(slots)
    }

    async fn read_claims(
        &self,
        topic: &str,
        offsets: &TopicOffsets,
        open: HashMap<CampaignId, Open>,
    ) -> Result<HashMap<CampaignId, Open>, KafkaError> {
        let ends = consumed_ends(offsets);
        self.read(topic, ends, open, |open, partition, offset, value| {
            // Bytes that are no record go to the dead letters: they claim nothing.
            if let Ok(record) = ClaimRecord::decode(value)
                && let Some(campaign) = open.get_mut(&record.id)
            {
                let place = format_args!("partition {partition}, offset {offset}");
                campaign.claims.consumed_record(&record, place, &mut campaign.findings);
            }
        })
        .await
    }

    async fn read_events(
        &self,
        topic: &str,
        offsets: &TopicOffsets,
        open: HashMap<CampaignId, Open>,
    ) -> Result<(HashMap<CampaignId, Open>, Vec<String>), KafkaError> {
        let ends = consumed_ends(offsets);
        let read = self.read(
            topic,
            ends,
            (open, Vec::new()),
            |(open, unreadable), partition, offset, value| match serde_json::from_slice::<LifecycleEvent>(value) {
                Ok(event) => {
                    if let Some(campaign) = open.get_mut(&event.campaign_id) {
                        campaign.published(event.event_type, event.coupon_id);
                    }
                }
                Err(error) => unreadable.push(format!("partition {partition}, offset {offset}: {error}")),
            },
        );
        read.await
    }

    /// Reads a topic up to `ends` and gives every record to `each`, beside what it gathers in `gathered`.
    async fn read<T, F>(&self, topic: &str, ends: HashMap<i32, i64>, gathered: T, mut each: F) -> Result<T, KafkaError>
    where
        T: Send + 'static,
        F: FnMut(&mut T, i32, i64, &[u8]) + Send + 'static,
    {
        // The reader keeps its closure to itself: what it gathers is taken out of here afterwards.
        let cell = Arc::new(Mutex::new(Some(gathered)));
        let filling = Arc::clone(&cell);
        self.reader
            .read(topic, HashMap::new(), ends, move |partition, offset, value| {
                let mut gathered = filling.lock().unwrap_or_else(PoisonError::into_inner);
                match gathered.as_mut() {
                    Some(gathered) => {
                        each(gathered, partition, offset, value);
                        ControlFlow::Continue(())
                    }
                    None => ControlFlow::Break(()),
                }
            })
            .await?;
        let gathered = cell.lock().unwrap_or_else(PoisonError::into_inner).take();
        gathered.ok_or_else(|| KafkaError::Unavailable {
            what: format!("read {topic}"),
            reason: "the reader broke off".to_owned(),
        })
    }
}

/// Up to where both sides must agree: what is consumed and still there.
fn consumed_ends(offsets: &TopicOffsets) -> HashMap<i32, i64> {
    let end = |(&partition, marks): (&i32, &campaign::kafka::offsets::Watermarks)| {
        (partition, offsets.next(partition).min(marks.high))
    };
    offsets.marks.iter().map(end).collect()
}

/// False: the campaign is not live any more.
async fn read_rows(
    snapshot: &mut AuditSnapshot,
    open: &mut Open,
    successes: Option<&Successes>,
) -> Result<bool, AuditError> {
    let id = open.row.id;
    match snapshot.campaign(id).await? {
        Some(row) => open.row = row,
        None => return Ok(false),
    }
    open.slots.restocks(snapshot.waiting_restocks(id).await?);
    let waiting = snapshot.waiting_events(id).await?;
    open.events_wait = waiting > 0;
    if waiting > 0 && open.slots.expects_quiet() {
        open.findings
            .add(FindingKind::OutboxNotEmpty, format_args!("{waiting} events"));
    }
    read_batches(snapshot, open).await?;
    read_coupons(snapshot, open, successes.cloned()).await?;
    for (code, rows) in snapshot.repeated_codes(id, CODES).await? {
        open.findings
            .add(FindingKind::CodeTwice, format_args!("code {code}: {rows} coupons"));
    }
    let mut after = None;
    loop {
        let page = snapshot.activity(id, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some((last.coupon, last.event));
        page.iter().for_each(|activity| open.events.activity(activity));
    }
    Ok(true)
}

async fn read_batches(snapshot: &mut AuditSnapshot, open: &mut Open) -> Result<(), DatabaseError> {
    let id = open.row.id;
    let mut after = None;
    loop {
        let page = snapshot.batches(id, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        page.into_iter()
            .for_each(|(batch, outcome)| open.claims.batch(batch, outcome));
    }
    let mut after = None;
    loop {
        let page = snapshot.rejections(id, after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.reservation.clone());
        for rejection in page {
            open.claims.rejection(rejection, &mut open.findings);
        }
    }
    Ok(())
}

async fn read_coupons(
    snapshot: &mut AuditSnapshot,
    open: &mut Open,
    mut successes: Option<Successes>,
) -> Result<(), DatabaseError> {
    let id = open.row.id;
    let mut after: Option<campaign::postgres::audit::AuditedCoupon> = None;
    loop {
        let from = after.as_ref().map(|last| (&last.user, last.request));
        let page = snapshot.coupons(id, from, PAGE).await?;
        let Some(last) = page.last() else { break };
        let mut last_user = after.as_ref().map(|last| last.user.clone());
        for coupon in &page {
            open.coupons += 1;
            if last_user.as_ref() == Some(&coupon.user) {
                open.duplicate_rows += 1;
            }
            last_user = Some(coupon.user.clone());
            open.slots.coupon(coupon, &mut open.findings);
            open.claims.coupon(coupon);
            open.events.coupon(coupon);
            if let Some(successes) = successes.as_mut() {
                successes.meet(coupon, &mut open.findings);
            }
        }
        after = Some(last.clone());
    }
    if let Some(successes) = successes {
        successes.finish(&mut open.findings);
    }
    let mut after = None;
    loop {
        let page = snapshot.parked(id, after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.reservation.clone());
        for parked in &page {
            open.slots.parked(parked, &mut open.findings);
            open.claims.parked(parked);
        }
    }
    Ok(())
}

impl Open {
    fn new(row: &CampaignRow, slots: Slots) -> Self {
        Self {
            row: row.clone(),
            findings: Findings::of(Some(row.name.clone())),
            slots,
            claims: Claims::default(),
            events: Events::default(),
            coupons: 0,
            duplicate_rows: 0,
            events_wait: false,
        }
    }

    fn published(&mut self, event: EventType, coupon: RequestId) {
        self.events.published(event, coupon);
    }

    fn finish(mut self, complete: Complete, whole_claims: bool) -> (Vec<Finding>, CampaignReport) {
        let revoked = self.claims.finish(whole_claims, &mut self.findings);
        self.events.finish(complete, &mut self.findings);
        let over = is_over(&self.row, Timestamp::now());
        let tally = self.slots.finish(&self.row, over, &mut self.findings);
        let report = CampaignReport {
            campaign: self.row.name.clone(),
            quantity: self.row.terms.quantity,
            tally,
            coupons: self.coupons,
            duplicate_rows: self.duplicate_rows,
            revoked,
        };
        (self.findings.into_list(), report)
    }
}

impl From<RedisError> for AuditError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl From<DatabaseError> for AuditError {
    fn from(error: DatabaseError) -> Self {
        Self::Postgres(error)
    }
}

impl From<KafkaError> for AuditError {
    fn from(error: KafkaError) -> Self {
        Self::Kafka(error)
    }
}
