//! `CouponCampaign` as the API server keeps it. From these types comes the CRD in `crds/`.
//!
//! The spec mirrors [`campaign::manifest`], which alone says what a manifest means: [`CouponCampaignSpec::manifest`]
//! turns the one into the other. What can be said as a schema or a CEL rule is said here, too, so that the API server
//! refuses it before anybody has to read a status.

// Each printer column is an attribute of its own; clippy takes their equal parts for repeats.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use campaign::manifest;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keeps the object until the campaign is drained.
pub const FINALIZER: &str = "coupon-operator.dev/drain";
/// A new value of this annotation rebuilds the state in Redis, once.
pub const REBUILD_ANNOTATION: &str = "coupon-operator.dev/rebuild";
/// `"true"` lets a deleted object go although the servers cannot be reached.
pub const FORCE_DELETE_ANNOTATION: &str = "coupon-operator.dev/force-delete";

/// What is wanted of a campaign.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "coupon-operator.dev",
    version = "v1alpha1",
    kind = "CouponCampaign",
    plural = "couponcampaigns",
    shortname = "ccamp",
    category = "coupon",
    namespaced,
    cel,
    status = "CouponCampaignStatus",
    derive = "PartialEq",
    doc = "A campaign that gives a limited number of coupons, first come, first served, one to a user.",
    validation = Rule::new("self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')")
        .message("metadata.name must be at most 63 of a-z, 0-9 and -, without a dot"),
    printcolumn(
        name = "Quantity",
        type_ = "integer",
        json_path = ".spec.quantity",
        description = "Coupons to give"
    ),
    printcolumn(
        name = "Issued",
        type_ = "integer",
        json_path = ".status.issued",
        description = "Coupons that occupy a slot"
    ),
    printcolumn(
        name = "Available",
        type_ = "integer",
        json_path = ".status.available",
        description = "Slots that are free"
    ),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".status.state",
        description = "What a claim meets now"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the campaign is as its spec wants it"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("!has(self.opensAt) || !has(self.closesAt) || self.opensAt < self.closesAt")
    .message("closesAt must be after opensAt").field_path(".closesAt"))]
#[serde(rename_all = "camelCase")]
pub struct CouponCampaignSpec {
    /// Coupons to give. May grow at any time; may shrink down to what is taken. At most 2^53 - 1, which Redis still
    /// counts exactly; its memory, some 100 bytes for each holder, is the bound that matters.
    #[x_kube(validation = Rule::new("self >= 0").message("quantity must be 0 or more"))]
    #[schemars(range(max = 9007199254740991_i64))]
    pub quantity: i64,
    /// Life of the state in Redis after the last reservation and after the close, in hours, minutes and seconds such as 24h
    /// or 1h30m. At least 1m; 24h if missing.
    #[serde(default = "default_ttl")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = is_duration("ttl"),
        validation = duration_that("duration(self) >= duration('1m')").message("ttl must be 1m or more"),
        validation = is_short_enough("ttl"))]
    pub ttl: String,
    /// Claims are refused before this time; from the beginning if missing. May be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub opens_at: Option<Timestamp>,
    /// Claims are refused from this time on; never if missing. May be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub closes_at: Option<Timestamp>,
    /// Refuses claims for now; false if missing.
    #[serde(default)]
    pub paused: bool,
    /// What a cancel does with the slot: Restock gives it to somebody else, Retain does not. Restock if
    /// missing.
    #[serde(default)]
    pub on_cancel: OnCancel,
    /// What becomes of a claim that cannot be persisted: Park keeps its slot until somebody decides, Release rejects it
    /// and frees the slot. Park if missing.
    #[serde(default)]
    pub on_dead_letter: OnDeadLetter,
    /// What a deletion of this object does with the campaign in Postgres. Retain: applied again under its name, the
    /// campaign goes on with its holders. Delete: it is archived, and its name is free for a new one. Retain if missing.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// What is given.
    #[serde(default)]
    pub coupon: CouponTemplate,
    /// The door's share of this campaign.
    #[serde(default)]
    pub intake: IntakeDemand,
    /// The workers' share of this campaign.
    #[serde(default)]
    pub worker: WorkerBounds,
}

/// What Go, CEL and the manifest's reader all take for a duration, the larger units first. None knows days. So many digits
/// stay below what CEL can hold.
const DURATION: &str = "self != '' && self.matches('^([0-9]{1,6}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$')";

fn is_duration(field: &str) -> Rule {
    let message =
        format!("{field} must be in hours, minutes and seconds, such as 24h, 90s or 1h30m; there are no days");
    Rule::new(DURATION).message(message.as_str())
}

/// Leaves what is no duration to [`is_duration`]: CEL's own complaint names types.
fn duration_that(holds: &str) -> Rule {
    Rule::new(format!("!({DURATION}) || {holds}"))
}

fn is_short_enough(field: &str) -> Rule {
    let message = format!("{field} must be 876600h (100 years) or less");
    duration_that("duration(self) <= duration('876600h')").message(message.as_str())
}

/// What a cancel does with the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OnCancel {
    /// Somebody else may have it.
    #[default]
    Restock,
    /// It stays taken.
    Retain,
}

/// What becomes of a claim that cannot be persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OnDeadLetter {
    /// Its slot stays taken until somebody replays or discards it.
    #[default]
    Park,
    /// It is rejected and its slot is free.
    Release,
}

/// What a deletion does with the campaign in Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DeletionPolicy {
    /// It stays: applied again, the campaign goes on.
    #[default]
    Retain,
    /// It is archived.
    Delete,
}

/// What is given.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("self.codePrefix == oldSelf.codePrefix")
        .message("codePrefix cannot change: coupons with it are out; apply another campaign").field_path(".codePrefix"),
    validation = Rule::new("has(self.discount) == has(oldSelf.discount) && (!has(self.discount) || self.discount == oldSelf.discount)")
        .message("discount cannot change: first comers would hold another coupon than late ones; apply another campaign")
)]
#[serde(rename_all = "camelCase")]
pub struct CouponTemplate {
    /// Goes before the code, with a dash: 0 to 16 of A-Z and 0-9; nothing if missing. Cannot be changed.
    #[serde(default)]
    #[schemars(regex(pattern = "^[A-Z0-9]*$"), length(max = 16))]
    pub code_prefix: String,
    /// How long a coupon is valid from its issue on, in hours, minutes and seconds such as 720h; for ever if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = is_duration("validFor"),
        validation = duration_that("duration(self) > duration('0s')").message("validFor must be more than 0"),
        validation = is_short_enough("validFor"))]
    pub valid_for: Option<String>,
    /// What it is worth. Cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discount: Option<Discount>,
    /// Anything that the shop wants to find again with a coupon: the intake's internal calls answer it, with the discount.
    /// May be changed; then it holds for coupons that are out, too.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64))]
    pub metadata: BTreeMap<String, String>,
}

/// What a coupon is worth. Kept for the shop; nothing here computes with it.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.type != 'Percentage' || self.value <= 100")
    .message("a percentage is at most 100").field_path(".value"))]
pub struct Discount {
    /// Its unit: Percentage of the price, or Amount in the smallest unit of the shop's currency.
    #[serde(rename = "type")]
    pub unit: DiscountUnit,
    /// How much of it.
    #[x_kube(validation = Rule::new("self >= 0").message("value must be 0 or more"))]
    pub value: i64,
}

/// The unit of a discount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DiscountUnit {
    /// Of the price, 0 to 100.
    Percentage,
    /// In the smallest unit of the shop's currency.
    Amount,
}

/// The door's share of a campaign.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IntakeDemand {
    /// Intake pods that it wants while it is open; 1 if missing.
    #[serde(default = "default_intake_replicas")]
    #[x_kube(validation = Rule::new("self >= 0").message("replicas must be 0 or more"))]
    pub replicas: i32,
    /// How long before the opening it wants them, in hours, minutes and seconds; 5m if missing.
    #[serde(default = "default_warmup")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = is_duration("warmup"), validation = is_short_enough("warmup"))]
    pub warmup: String,
}

impl Default for IntakeDemand {
    fn default() -> Self {
        Self {
            replicas: default_intake_replicas(),
            warmup: default_warmup(),
        }
    }
}

/// The workers' share of a campaign.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas")
    .message("maxReplicas (8 if missing) must not be less than minReplicas (1 if missing)").field_path(".maxReplicas"))]
#[serde(rename_all = "camelCase")]
pub struct WorkerBounds {
    /// Never fewer worker pods while it is open; 1 if missing.
    #[serde(default = "default_min_replicas")]
    #[x_kube(validation = Rule::new("self >= 0").message("minReplicas must be 0 or more"))]
    pub min_replicas: i32,
    /// Never more worker pods; 8 if missing.
    #[serde(default = "default_max_replicas")]
    #[x_kube(validation = Rule::new("self >= 1").message("maxReplicas must be 1 or more"))]
    pub max_replicas: i32,
    /// Pending claims that one worker pod is worth; 5000 if missing.
    #[serde(default = "default_target_backlog")]
    #[x_kube(validation = Rule::new("self >= 1").message("targetBacklog must be 1 or more"))]
    pub target_backlog: i64,
}

impl Default for WorkerBounds {
    fn default() -> Self {
        Self {
            min_replicas: default_min_replicas(),
            max_replicas: default_max_replicas(),
            target_backlog: default_target_backlog(),
        }
    }
}

fn default_ttl() -> String {
    "24h".to_owned()
}

fn default_intake_replicas() -> i32 {
    manifest::IntakeDemand::default().replicas
}

fn default_warmup() -> String {
    manifest::IntakeDemand::default().warmup.to_string()
}

fn default_min_replicas() -> i32 {
    manifest::WorkerBounds::default().min_replicas
}

fn default_max_replicas() -> i32 {
    manifest::WorkerBounds::default().max_replicas
}

fn default_target_backlog() -> i64 {
    manifest::WorkerBounds::default().target_backlog
}

fn date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "date-time", "nullable": true})
}

/// The spec says something that the schema let pass and nobody can read.
#[derive(Debug, thiserror::Error)]
#[error("the spec cannot be read: {0}")]
pub struct UnreadableSpec(#[from] serde_json::Error);

impl CouponCampaignSpec {
    /// The same, as the rest of the system reads it.
    pub fn manifest(&self) -> Result<manifest::CouponCampaignSpec, UnreadableSpec> {
        Ok(serde_json::from_value(serde_json::to_value(self)?)?)
    }
}

/// What was last seen of a campaign. Numbers stay as they were last read while a server cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CouponCampaignStatus {
    /// The generation of the spec that this status tells about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What a claim meets now: Waiting, Open, Paused, SoldOut, Closed, Unavailable, Unknown, Invalid or Deleting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The life of the state in Redis; each rebuild begins a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// Coupons to give, as in force: more than the spec wants while more is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantity: Option<i64>,
    /// Slots that are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    /// Slots that are taken: pending, issued and parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<i64>,
    /// Claims that are reserved and not yet settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i64>,
    /// Coupons that occupy a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued: Option<i64>,
    /// Dead letters that occupy a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<i64>,
    /// Pods that this campaign wants now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Since when nothing is available and nothing is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub quiet_since: Option<Time>,
    /// The last rebuild of the state in Redis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_rebuild: Option<LastRebuild>,
    /// The value of the annotation coupon-operator.dev/rebuild that was last served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_rebuild: Option<String>,
    /// Ready, Progressing, Degraded, StateReady, Open, Exhausted, Conserved, and Draining once it is deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a claim meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum State {
    /// The window opens later.
    Waiting,
    /// Claims are judged.
    Open,
    /// Claims are refused for now.
    Paused,
    /// No slot is free.
    SoldOut,
    /// The window is over.
    Closed,
    /// The state is missing or is being rebuilt: claims are told to come again.
    Unavailable,
    /// A server cannot be read.
    Unknown,
    /// The spec cannot be meant.
    Invalid,
    /// The object is deleted and the campaign is being drained.
    Deleting,
}

/// Pods that a campaign wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Replicas {
    /// Of the intake.
    pub intake: i32,
    /// Of the worker.
    pub worker: i32,
}

/// A rebuild of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(rename_all = "camelCase")]
pub struct LastRebuild {
    /// Why: Created, StateMissing, OtherEpoch, OtherCampaign, Interrupted, Requested, or ByAnotherProcess where an intake
    /// or the command line was faster.
    pub reason: RebuildReason,
    /// When it was done.
    #[schemars(schema_with = "required_date_time")]
    pub time: Time,
    /// Users in the new state; missing where another process rebuilt it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<i64>,
    /// How long the door was shut, such as 6s 12ms; missing where another process rebuilt it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
}

fn required_date_time(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "string", "format": "date-time"})
}

/// Why a state was rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum RebuildReason {
    /// The campaign is new.
    Created,
    /// A key was missing, or the state was built on another server.
    StateMissing,
    /// The state belonged to another epoch than Postgres'.
    OtherEpoch,
    /// The state belonged to another campaign of the same name.
    OtherCampaign,
    /// A rebuild had begun and nobody was at it any more.
    Interrupted,
    /// The annotation asked for it.
    Requested,
    /// An intake or the command line did it; seen by the new epoch.
    ByAnotherProcess,
}

impl RebuildReason {
    /// All, for metrics that begin at zero.
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::StateMissing,
        Self::OtherEpoch,
        Self::OtherCampaign,
        Self::Interrupted,
        Self::Requested,
        Self::ByAnotherProcess,
    ];

    /// Its name in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "Created",
            Self::StateMissing => "StateMissing",
            Self::OtherEpoch => "OtherEpoch",
            Self::OtherCampaign => "OtherCampaign",
            Self::Interrupted => "Interrupted",
            Self::Requested => "Requested",
            Self::ByAnotherProcess => "ByAnotherProcess",
        }
    }
}
