//! Step 5: what was found, put into the object's status, and into events where it is news.

use campaign::align::AlignError;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams},
};

use crate::{
    conditions::{self, Finding, Seen, Trouble, Truth},
    demand::{CampaignDemand, DemandNumbers},
    drift::Verdict,
    reconcile::{
        Object,
        apply::{ApplyError, Outcome},
        load::Loaded,
        validate::{InvalidCampaign, Wanted},
    },
    resource::{CouponCampaignStatus, LastRebuild, RebuildReason, Replicas, State},
    status::{FIELD_MANAGER, identity},
};

/// What a status follows from.
pub struct Findings<'a> {
    /// The generation of the spec that was looked at.
    pub generation: Option<i64>,
    /// The earlier status.
    pub earlier: &'a CouponCampaignStatus,
    /// What the spec wants, or what is wrong with it.
    pub wanted: Result<&'a Wanted, &'a InvalidCampaign>,
    /// The object is deleted.
    pub deleted: bool,
    /// The value of the annotation that asks for a rebuild.
    pub rebuild_request: Option<&'a str>,
    /// What no step can bring about.
    pub trouble: &'a [Trouble],
    /// What came of the plan.
    pub outcome: &'a Outcome,
    /// What was read after the steps.
    pub loaded: &'a Loaded,
    /// What the looks at the equation say.
    pub verdict: Option<&'a Verdict>,
}

/// A new status, and what is news in it.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusUpdate {
    /// The whole status.
    pub status: CouponCampaignStatus,
    /// Conditions with another status or reason than before.
    pub news: Vec<Finding>,
    /// A rebuild that the earlier status did not know.
    pub rebuilt: Option<LastRebuild>,
}

/// What is known of the demand after a look.
pub fn demand_of(wanted: &Wanted, status: &CouponCampaignStatus, loaded: &Loaded) -> CampaignDemand {
    // Without a state nothing is known, but for a campaign that is over or not yet created.
    let numbers = match loaded.serving() {
        Some((_, numbers)) => Some(DemandNumbers {
            pending: numbers.pending,
            quiet_since: status.quiet_since.as_ref().map(|since| since.0),
        }),
        None if loaded.unreadable().is_some() => None,
        None => match &loaded.row {
            Ok(None) => Some(NOTHING),
            Ok(Some(row)) if campaign::align::is_over(row, loaded.now) => Some(NOTHING),
            _ => None,
        },
    };
    CampaignDemand::new(&wanted.spec, numbers)
}

const NOTHING: DemandNumbers = DemandNumbers {
    pending: 0,
    quiet_since: None,
};

/// The new status.
pub fn status(found: &Findings<'_>) -> StatusUpdate {
    let loaded = found.loaded;
    let trouble = troubles(found);
    let seen = Seen {
        loaded,
        trouble: &trouble,
        verdict: found.verdict,
    };
    let mut findings = conditions::findings(&seen);
    if found.deleted {
        let draining = found.outcome.draining.as_deref();
        let reason = if found.outcome.error.is_some() {
            "ServersUnreachable"
        } else {
            "Draining"
        };
        findings.push(Finding::new(
            conditions::DRAINING,
            true,
            reason,
            draining.unwrap_or("the door is shut, what is on its way becomes coupons"),
        ));
    }
    let (merged, news) = conditions::merge(&found.earlier.conditions, &findings, found.generation, loaded.now);

    let mut status = numbers(found.earlier, loaded);
    let rebuilt = rebuilt(found, status.epoch);
    if rebuilt.is_some() {
        status.last_rebuild.clone_from(&rebuilt);
    }
    if found.outcome.served_rebuild {
        status.served_rebuild = found.rebuild_request.map(str::to_owned);
    }
    status.observed_generation = found.generation;
    status.state = Some(match found.wanted {
        _ if found.deleted => State::Deleting,
        Err(_) => State::Invalid,
        Ok(_) => conditions::state(&findings),
    });
    if let Ok(wanted) = found.wanted {
        let pods = demand_of(wanted, &status, loaded).pods(loaded.now);
        status.replicas = Some(Replicas {
            intake: pods.intake,
            worker: pods.worker,
        });
    }
    status.conditions = merged;
    StatusUpdate { status, news, rebuilt }
}

fn troubles(found: &Findings<'_>) -> Vec<Trouble> {
    let invalid = found.wanted.err().map(|invalid| Trouble {
        reason: "Invalid",
        message: invalid.to_string(),
    });
    let failed = found.outcome.error.as_ref().map(|error| Trouble {
        reason: match error {
            ApplyError::NotConnected(_) => "NotConnected",
            ApplyError::Align(AlignError::Promised { .. }) => "Invalid",
            _ => "ApplyFailed",
        },
        message: error.to_string(),
    });
    invalid
        .into_iter()
        .chain(failed)
        .chain(found.trouble.iter().chain(&found.outcome.trouble).cloned())
        .collect()
}

/// The numbers that could be read; the others stay as they were.
fn numbers(earlier: &CouponCampaignStatus, loaded: &Loaded) -> CouponCampaignStatus {
    let mut status = earlier.clone();
    if let Ok(Some(row)) = &loaded.row {
        status.epoch = Some(row.epoch.0);
        status.issued = Some(row.issued);
        status.parked = Some(row.parked);
        status.quantity.get_or_insert(row.terms.quantity);
    }
    if let Some((_, numbers)) = loaded.serving() {
        status.quantity = Some(numbers.quantity);
        status.available = Some(numbers.available());
        status.taken = Some(numbers.taken);
        status.pending = Some(numbers.pending);
        let quiet = numbers.available() == 0 && numbers.pending == 0;
        status.quiet_since = quiet.then(|| status.quiet_since.unwrap_or(Time(loaded.now)));
    }
    status
}

/// The rebuild that made the epoch, if it is another one than before.
fn rebuilt(found: &Findings<'_>, epoch: Option<i64>) -> Option<LastRebuild> {
    if let Some(rebuilt) = &found.outcome.rebuilt {
        return Some(rebuilt.clone());
    }
    let epoch = epoch.filter(|epoch| *epoch > 0 && found.earlier.epoch.is_some_and(|earlier| earlier != *epoch))?;
    // An epoch is the second in which it began, unless two began in one second.
    let began = Timestamp::from_second(epoch)
        .unwrap_or(found.loaded.now)
        .min(found.loaded.now);
    Some(LastRebuild {
        reason: RebuildReason::ByAnotherProcess,
        time: Time(began),
        users: None,
        duration: None,
    })
}

/// The status cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the status of {name} cannot be written: {source}")]
pub struct StatusError {
    name: String,
    source: kube::Error,
}

/// Writes a status that is another one than before. An object that is gone needs none.
pub async fn write(
    api: &Api<Object>,
    meta: &ObjectMeta,
    earlier: &CouponCampaignStatus,
    status: &CouponCampaignStatus,
) -> Result<(), StatusError> {
    let name = meta.name.clone().unwrap_or_default();
    let failed = |source| StatusError {
        name: name.clone(),
        source,
    };
    // As they are on the wire: there, times are whole seconds.
    let wire = |status: &CouponCampaignStatus| {
        serde_json::to_value(status).map_err(|error| failed(kube::Error::SerdeError(error)))
    };
    let (before, after) = (wire(earlier)?, wire(status)?);
    if before == after {
        return Ok(());
    }
    let mut patch = identity(meta);
    patch["status"] = after;
    match api
        .patch_status(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

/// Whether people should be told of a finding by an event, and whether as a warning.
pub fn worth_an_event(finding: &Finding, first: bool) -> Option<bool> {
    match (finding.kind, finding.truth) {
        (conditions::PROGRESSING, _) => None,
        (conditions::DRAINING, _) => Some(finding.reason != "Draining"),
        // How everything begins.
        (conditions::DEGRADED | conditions::EXHAUSTED, Truth::False) if first => None,
        (conditions::CONSERVED, Truth::True) if first => None,
        (conditions::DEGRADED, truth) => Some(truth == Truth::True),
        (conditions::CONSERVED | conditions::STATE_READY | conditions::READY, truth) => Some(truth == Truth::False),
        _ => Some(false),
    }
}
