//! One reconcile of one campaign: load → validate → plan → apply → update status.
//!
//! Only loading, applying and the status speak to servers. Reconciles of different campaigns run beside each other;
//! two of one campaign never do.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use campaign::name::CampaignName;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client, Resource, ResourceExt, api::ObjectMeta, core::DeserializeGuard};
use kube_runtime::controller::Action;

use self::{
    apply::{ApplyError, Outcome, Target},
    load::Loaded,
    plan::{Plan, Situation, Step},
    update_status::{Findings, StatusError, StatusUpdate},
    validate::{InvalidCampaign, Wanted},
};
use crate::{
    board::Board,
    conditions::{self, Finding},
    drift::{DriftWatch, Verdict},
    events::Events,
    finalizer,
    metrics::Metrics,
    resource::{CouponCampaign, CouponCampaignStatus, FORCE_DELETE_ANNOTATION, REBUILD_ANNOTATION},
    schedule,
    servers::Connected,
};

pub mod apply;
pub mod load;
pub mod plan;
pub mod update_status;
pub mod validate;

/// An object as it is watched: one that cannot be read must not stop the watch of the others.
pub type Object = DeserializeGuard<CouponCampaign>;

/// The first pause after a failed reconcile; doubles up to [`BACKOFF_MAX`].
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// What all reconciles share.
pub struct Context {
    /// Speaks to the API server.
    pub client: Client,
    /// The servers behind the campaigns.
    pub servers: Connected,
    /// For people.
    pub events: Events,
    /// For machines.
    pub metrics: Metrics,
    /// For the task that scales.
    pub board: Board,
    memory: Mutex<HashMap<CampaignName, Memory>>,
}

/// What is remembered of one campaign between two reconciles. Lost with the leader, and found again by looking.
#[derive(Default)]
struct Memory {
    drift: DriftWatch,
    failures: u32,
}

/// Why a reconcile failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The object cannot be read.
    #[error("the object {name} cannot be read: {source}")]
    Load {
        /// Which one.
        name: String,
        /// As the API server put it.
        source: kube::Error,
    },
    /// A step.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The status.
    #[error(transparent)]
    Status(#[from] StatusError),
}

impl ReconcileError {
    /// The step, for metrics.
    pub fn step(&self) -> &'static str {
        match self {
            Self::Load { .. } => "load",
            Self::Apply(_) => "apply",
            Self::Status(_) => "update_status",
        }
    }
}

impl Context {
    /// Nothing is remembered yet.
    pub fn new(client: Client, servers: Connected, events: Events, metrics: Metrics, board: Board) -> Self {
        Self {
            client,
            servers,
            events,
            metrics,
            board,
            memory: Mutex::default(),
        }
    }

    fn remember<T>(&self, name: &CampaignName, use_it: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        use_it(memory.entry(name.clone()).or_default())
    }

    fn forget(&self, name: &CampaignName) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.board.remove(name);
        self.metrics.forget_drift(name);
    }
}

/// Reconciles one object.
pub async fn reconcile(watched: Arc<Object>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let measured = context.metrics.reconcile();
    let result = reconcile_one(watched.meta(), &context).await;
    measured.ended(result.as_ref().err().map(ReconcileError::step));
    if let (Ok(_), Ok(name)) = (&result, validate::name(watched.meta())) {
        context.remember(&name, |memory| memory.failures = 0);
    }
    result
}

/// When to try a failed reconcile again.
pub fn retry(watched: Arc<Object>, error: &ReconcileError, context: Arc<Context>) -> Action {
    tracing::warn!(%error, campaign = watched.name_any(), step = error.step(), "reconcile failed; it is tried again");
    let failures = validate::name(watched.meta()).map_or(1, |name| {
        context.remember(&name, |memory| {
            memory.failures = memory.failures.saturating_add(1);
            memory.failures
        })
    });
    Action::requeue(
        BACKOFF
            .saturating_mul(1 << failures.saturating_sub(1).min(5))
            .min(BACKOFF_MAX),
    )
}

/// An object as it is now, taken apart.
struct Subject {
    meta: ObjectMeta,
    reference: ObjectReference,
    status: CouponCampaignStatus,
    wanted: Result<Wanted, InvalidCampaign>,
}

impl Subject {
    fn new(object: Object) -> Self {
        let reference = object.object_ref(&());
        match object.0 {
            Ok(object) => Self {
                wanted: validate::validate(&object),
                status: object.status.unwrap_or_default(),
                meta: object.metadata,
                reference,
            },
            Err(invalid) => Self {
                meta: invalid.metadata,
                reference,
                status: CouponCampaignStatus::default(),
                wanted: Err(InvalidCampaign::Undecodable(invalid.error)),
            },
        }
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.meta.annotations.as_ref()?.get(name).map(String::as_str)
    }

    fn is_deleted(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    /// The value of the annotation that asks for a rebuild; an empty one asks for nothing.
    fn rebuild_request(&self) -> Option<&str> {
        self.annotation(REBUILD_ANNOTATION)
            .filter(|request| !request.is_empty())
    }
}

async fn reconcile_one(watched: &ObjectMeta, context: &Context) -> Result<Action, ReconcileError> {
    let api: Api<Object> = Api::namespaced(context.client.clone(), watched.namespace.as_deref().unwrap_or_default());
    let object_name = watched.name.clone().unwrap_or_default();
    let found = api.get_opt(&object_name).await.map_err(|source| ReconcileError::Load {
        name: object_name.clone(),
        source,
    })?;
    let campaign = validate::name(watched);
    // The watch may be behind: what is decided by must be what is there now.
    let Some(subject) = found.map(Subject::new) else {
        if let Ok(name) = &campaign {
            context.forget(name);
        }
        return Ok(Action::await_change());
    };
    match campaign {
        Ok(name) => reconcile_campaign(&api, subject, &name, context).await,
        Err(invalid) => refuse(&api, subject, invalid, context).await,
    }
}

async fn reconcile_campaign(
    api: &Api<Object>,
    subject: Subject,
    name: &CampaignName,
    context: &Context,
) -> Result<Action, ReconcileError> {
    let servers = context.servers.now();
    let loaded = load::load(&servers, name).await;
    let wanted = subject.wanted.as_ref();
    let plan = plan::plan(Situation {
        deleted: subject.is_deleted(),
        force_delete: subject.annotation(FORCE_DELETE_ANNOTATION) == Some("true"),
        has_finalizer: finalizer::is_set(&subject.meta),
        wanted: wanted.ok(),
        asks_rebuild: subject
            .rebuild_request()
            .is_some_and(|request| subject.status.served_rebuild.as_deref() != Some(request)),
        loaded: &loaded,
    });
    tracing::debug!(campaign = %name, steps = ?plan.steps, "planned");
    let target = Target {
        api,
        meta: &subject.meta,
        name,
        wanted: wanted.ok(),
        servers: &servers,
    };
    let announced = announce(api, &subject, &plan, &loaded).await?;
    let outcome = apply::apply(&target, &plan).await;
    if outcome.released {
        context.forget(name);
        context
            .events
            .normal(
                &subject.reference,
                "Delete",
                "Drained",
                "the campaign is drained, its state is gone",
            )
            .await;
        return Ok(Action::await_change());
    }

    let loaded = load::load(&servers, name).await;
    let verdict = look_at_equation(context, name, &loaded);
    let update = update_status::status(&Findings {
        generation: subject.meta.generation,
        earlier: announced.as_ref().unwrap_or(&subject.status),
        wanted,
        deleted: subject.is_deleted(),
        rebuild_request: subject.rebuild_request(),
        trouble: &plan.trouble,
        outcome: &outcome,
        loaded: &loaded,
        verdict: verdict.as_ref(),
    });
    match wanted {
        Ok(wanted) => context
            .board
            .put(name, update_status::demand_of(wanted, &update.status, &loaded)),
        Err(_) => context.board.put_unreadable(name),
    }
    let written = announced.as_ref().unwrap_or(&subject.status);
    update_status::write(api, &subject.meta, written, &update.status).await?;
    tell(context, &subject, &outcome, &update).await;
    let after = next(wanted.ok(), &loaded, &update, &outcome);
    match outcome.error {
        Some(error) => Err(error.into()),
        None => Ok(Action::requeue(after)),
    }
}

/// A rebuild shuts the door for as long as it waits: the status says so before it begins. Answers what was written.
async fn announce(
    api: &Api<Object>,
    subject: &Subject,
    plan: &Plan,
    loaded: &Loaded,
) -> Result<Option<CouponCampaignStatus>, ReconcileError> {
    if !plan.steps.iter().any(|step| matches!(step, Step::Rebuild { .. })) {
        return Ok(None);
    }
    let update = update_status::status(&Findings {
        generation: subject.meta.generation,
        earlier: &subject.status,
        wanted: subject.wanted.as_ref(),
        deleted: subject.is_deleted(),
        rebuild_request: None,
        trouble: &plan.trouble,
        outcome: &Outcome::default(),
        loaded: &loaded.rebuilding(),
        verdict: None,
    });
    update_status::write(api, &subject.meta, &subject.status, &update.status).await?;
    Ok(Some(update.status))
}

fn next(wanted: Option<&Wanted>, loaded: &Loaded, update: &StatusUpdate, outcome: &Outcome) -> Duration {
    let quiet_since = update.status.quiet_since.as_ref().map(|since| since.0);
    // A state that somebody else builds is looked at again soon, until it serves.
    let building = update
        .status
        .conditions
        .iter()
        .any(|condition| condition.type_ == conditions::PROGRESSING && condition.status == "True");
    let unfinished = outcome.unfinished || building;
    schedule::next_look(wanted.map(|wanted| &wanted.spec), loaded, quiet_since, unfinished)
}

fn look_at_equation(context: &Context, name: &CampaignName, loaded: &Loaded) -> Option<Verdict> {
    let drifts = loaded.tally()?.check_running();
    let verdict = context.remember(name, |memory| memory.drift.look(&drifts, Instant::now()));
    match &verdict {
        Verdict::Balanced => context.metrics.forget_drift(name),
        Verdict::Suspect => tracing::debug!(campaign = %name, ?drifts, "slots do not add up at one look"),
        Verdict::Broken(drifts) => context.metrics.drifts(name, drifts),
    }
    Some(verdict)
}

/// Events, log and counters of what is news.
async fn tell(context: &Context, subject: &Subject, outcome: &Outcome, update: &StatusUpdate) {
    let (events, about) = (&context.events, &subject.reference);
    if outcome.created {
        events
            .normal(about, "Create", "Created", "the campaign is in Postgres")
            .await;
    }
    if let Some(rebuilt) = &update.rebuilt {
        let reason = rebuilt.reason.as_str();
        context.metrics.rebuilt(rebuilt.reason);
        let note = match (&rebuilt.users, &rebuilt.duration) {
            (Some(users), Some(duration)) => {
                format!("{reason}: the state is new, with {users} users; the door was shut for {duration}")
            }
            _ => format!("{reason}: the state is new"),
        };
        events.normal(about, "Rebuild", "Rebuilt", &note).await;
    }
    let first = subject.status.conditions.is_empty();
    for finding in &update.news {
        let Some(warning) = update_status::worth_an_event(finding, first) else {
            continue;
        };
        let Finding {
            kind, reason, message, ..
        } = finding;
        let status = finding.truth.as_str();
        tracing::info!(condition = kind, status, reason, message, "a condition changed");
        if warning {
            events.warning(about, kind, reason, message).await;
        } else {
            events.normal(about, kind, reason, message).await;
        }
    }
}

/// An object that can be no campaign: it says so, and never holds anything.
async fn refuse(
    api: &Api<Object>,
    subject: Subject,
    invalid: InvalidCampaign,
    context: &Context,
) -> Result<Action, ReconcileError> {
    if subject.is_deleted() {
        finalizer::remove(api, &subject.meta).await.map_err(ApplyError::from)?;
        return Ok(Action::await_change());
    }
    let outcome = Outcome::default();
    let loaded = Loaded::nothing(jiff::Timestamp::now());
    let update = update_status::status(&Findings {
        generation: subject.meta.generation,
        earlier: &subject.status,
        wanted: Err(&invalid),
        deleted: false,
        rebuild_request: None,
        trouble: &[],
        outcome: &outcome,
        loaded: &loaded,
        verdict: None,
    });
    update_status::write(api, &subject.meta, &subject.status, &update.status).await?;
    tell(context, &subject, &outcome, &update).await;
    Ok(Action::await_change())
}
