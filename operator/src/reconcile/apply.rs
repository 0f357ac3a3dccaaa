//! Step 4: does what was planned, one step after the other, and tells what came of it. A step that fails leaves
//! nothing half done that the next reconcile does not finish.

use std::time::Duration;

use campaign::{
    align::{AlignError, deletion::Deletion},
    name::CampaignName,
    rebuild::{RebuildError, Rebuilt},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, api::ObjectMeta};

use crate::{
    conditions::Trouble,
    finalizer::{self, FinalizerError},
    reconcile::{
        Object,
        plan::{self, Plan, Step},
        validate::Wanted,
    },
    resource::{LastRebuild, RebuildReason},
    servers::Servers,
};

/// How long one reconcile waits for claims on their way before it looks again later.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);

/// What came of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The campaign is new in Postgres.
    pub created: bool,
    /// A rebuild that this reconcile made.
    pub rebuilt: Option<LastRebuild>,
    /// The annotation's wish was served.
    pub served_rebuild: bool,
    /// Why the campaign is not drained yet.
    pub draining: Option<String>,
    /// The object may go.
    pub released: bool,
    /// What the steps could not bring about.
    pub trouble: Vec<Trouble>,
    /// Somebody else is at work, or claims are on their way: look again soon.
    pub unfinished: bool,
    /// The step that failed.
    pub error: Option<ApplyError>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The finalizer.
    #[error(transparent)]
    Finalizer(#[from] FinalizerError),
    /// Terms or state.
    #[error(transparent)]
    Align(#[from] AlignError),
    /// The rebuild.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// There are no connections yet.
    #[error("{0}")]
    NotConnected(String),
}

/// What a plan is applied to.
pub struct Target<'a> {
    /// The API of its namespace.
    pub api: &'a Api<Object>,
    /// The object.
    pub meta: &'a ObjectMeta,
    /// The campaign.
    pub name: &'a CampaignName,
    /// What the spec wants; steps that need it are planned only with it.
    pub wanted: Option<&'a Wanted>,
    /// The servers.
    pub servers: &'a Result<Servers, String>,
}

/// Applies a plan.
pub async fn apply(target: &Target<'_>, plan: &Plan) -> Outcome {
    let mut outcome = Outcome::default();
    for step in &plan.steps {
        match run(target, step, &mut outcome).await {
            Ok(Next::GoOn) => {}
            Ok(Next::Later) => {
                outcome.unfinished = true;
                return outcome;
            }
            Err(error) => {
                if matches!(step, Step::Drain(_)) {
                    outcome.draining = Some(error.to_string());
                }
                outcome.error = Some(error);
                return outcome;
            }
        }
    }
    outcome
}

/// Whether the steps after this one may run.
enum Next {
    GoOn,
    Later,
}

async fn run(target: &Target<'_>, step: &Step, outcome: &mut Outcome) -> Result<Next, ApplyError> {
    let aligner = || match target.servers {
        Ok(servers) => Ok(&servers.aligner),
        Err(reason) => Err(ApplyError::NotConnected(reason.clone())),
    };
    match (step, target.wanted) {
        (Step::AddFinalizer, _) => finalizer::set(target.api, target.meta).await?,
        (Step::RemoveFinalizer, _) => {
            finalizer::remove(target.api, target.meta).await?;
            outcome.released = true;
        }
        (Step::Create, Some(wanted)) => {
            (_, outcome.created) = aligner()?.create(target.name, &wanted.terms).await?;
        }
        (Step::Apply, Some(wanted)) => {
            let reached = aligner()?
                .apply(target.name, &wanted.terms)
                .await?
                .campaign
                .terms
                .quantity;
            if reached > wanted.terms.quantity {
                outcome.trouble.push(plan::below_taken(wanted.terms.quantity, reached));
            }
        }
        (Step::Create | Step::Apply, None) => {}
        (Step::Align, _) => {
            aligner()?.round(target.name).await?;
        }
        (Step::Rebuild { reason, force }, _) => {
            match aligner()?.rebuilder.rebuild(target.name, *force).await? {
                Rebuilt::Done { users, took, .. } => {
                    outcome.rebuilt = Some(last_rebuild(*reason, users, took));
                    // Whoever asked for a new state has one now.
                    outcome.served_rebuild = true;
                }
                // Somebody else holds the lock or has just done it. A wish is served by another reconcile.
                Rebuilt::NotNeeded | Rebuilt::Superseded | Rebuilt::NoCampaign => {
                    outcome.unfinished = *reason == RebuildReason::Requested;
                }
            }
        }
        (Step::Drain(policy), _) => match aligner()?.delete(target.name, *policy, DRAIN_LIMIT).await? {
            Deletion::Done(_) | Deletion::NotLive => {}
            Deletion::Draining(undrained) => {
                outcome.draining = Some(undrained.to_string());
                return Ok(Next::Later);
            }
        },
    }
    Ok(Next::GoOn)
}

fn last_rebuild(reason: RebuildReason, users: u64, took: Duration) -> LastRebuild {
    LastRebuild {
        reason,
        time: Time(Timestamp::now()),
        users: i64::try_from(users).ok(),
        duration: Some(format!("{took:.1?}")),
    }
}
