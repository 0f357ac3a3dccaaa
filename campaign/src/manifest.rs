//! The `CouponCampaign` manifest: the same YAML for Kubernetes and for the command line. Unknown fields are refused: a
//! mistyped `closesAt` must not open a sale for ever.

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    name::{CampaignName, NameError},
    postgres::campaign::{CampaignTerms, OnCancel, OnDeadLetter},
};

/// `apiVersion`.
pub const API_VERSION: &str = "coupon-operator.dev/v1alpha1";
/// `kind`.
pub const KIND: &str = "CouponCampaign";

/// Lua and JSON readers count in doubles: exact up to here.
const QUANTITY_MAX: i64 = (1 << 53) - 1;
const TTL_MIN: SignedDuration = SignedDuration::from_mins(1);
/// 100 years: a time plus this is still a time, for every server that reads it.
const DURATION_MAX: SignedDuration = SignedDuration::from_hours(876_600);
const CODE_PREFIX_MAX: usize = 16;

/// A whole manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CouponCampaign {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Its name.
    pub metadata: ManifestMetadata,
    /// What is wanted.
    pub spec: CouponCampaignSpec,
}

/// What the command line reads of Kubernetes' metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManifestMetadata {
    /// A DNS label.
    pub name: String,
    /// The installation's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// For people and tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// For people and tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What is wanted of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CouponCampaignSpec {
    /// Coupons to give. May grow; may shrink down to what is taken.
    pub quantity: i64,
    /// Life of the state in Redis after the last reservation and after the close.
    #[serde(default = "default_ttl")]
    pub ttl: HumanDuration,
    /// Claims are refused before; from the beginning if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_at: Option<Timestamp>,
    /// Claims are refused from then on; never if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<Timestamp>,
    /// Refuses claims for now.
    #[serde(default)]
    pub paused: bool,
    /// What a cancel does with the slot.
    #[serde(default = "default_on_cancel")]
    pub on_cancel: OnCancel,
    /// What becomes of a claim that cannot be persisted.
    #[serde(default = "default_on_dead_letter")]
    pub on_dead_letter: OnDeadLetter,
    /// What a deletion of the manifest does.
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

/// What a deletion of the manifest does with the campaign in Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// It stays: applied again, the campaign goes on with its holders.
    #[default]
    Retain,
    /// It is archived: its name is free for a new one.
    Delete,
}

/// What is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CouponTemplate {
    /// Goes before the code, with a dash: 0 to 16 of A-Z and 0-9.
    #[serde(default)]
    pub code_prefix: String,
    /// From the issue on; for ever if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_for: Option<HumanDuration>,
    /// What it is worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discount: Option<Discount>,
    /// Anything that the shop wants to find again.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// What a coupon is worth. Kept for the shop; nothing here computes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discount {
    /// Its unit.
    #[serde(rename = "type")]
    pub unit: DiscountUnit,
    /// How much of it.
    pub value: i64,
}

/// The unit of a discount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiscountUnit {
    /// Of the price, 0 to 100.
    Percentage,
    /// In the smallest unit of the shop's currency.
    Amount,
}

/// The door's share of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IntakeDemand {
    /// Pods that it wants while it is open.
    pub replicas: i32,
    /// How long before the opening it wants them.
    pub warmup: HumanDuration,
}

impl Default for IntakeDemand {
    fn default() -> Self {
        Self {
            replicas: 1,
            warmup: HumanDuration(SignedDuration::from_mins(5)),
        }
    }
}

/// The workers' share of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkerBounds {
    /// Never fewer while it is open.
    pub min_replicas: i32,
    /// Never more.
    pub max_replicas: i32,
    /// Pending claims that one worker is worth.
    pub target_backlog: i64,
}

impl Default for WorkerBounds {
    fn default() -> Self {
        Self {
            min_replicas: 1,
            max_replicas: 8,
            target_backlog: 5_000,
        }
    }
}

/// A duration as people write it: `24h`, `1m`, `1h30m`. Negative ones are read, too, so that the validation can name
/// their field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HumanDuration(pub SignedDuration);

impl HumanDuration {
    /// In ms.
    pub fn as_millis(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(if self.0.is_negative() { i64::MIN } else { i64::MAX })
    }
}

impl FromStr for HumanDuration {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for HumanDuration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("{text:?} is not a duration such as 24h, 90s or 1h30m"))
    }
}

impl From<HumanDuration> for String {
    fn from(duration: HumanDuration) -> Self {
        duration.to_string()
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

fn default_ttl() -> HumanDuration {
    HumanDuration(SignedDuration::from_hours(24))
}

fn default_on_cancel() -> OnCancel {
    OnCancel::Restock
}

fn default_on_dead_letter() -> OnDeadLetter {
    OnDeadLetter::Park
}

/// Why a text is not a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not YAML, a field of the wrong type, an unknown or a missing one; the text names it.
    #[error("not a {KIND} manifest: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// Values that cannot be meant.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// All that is wrong with a manifest; never empty.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the manifest is refused: {}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; "))]
pub struct Problems(pub Vec<Problem>);

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, from the top: `spec.quantity`.
    pub path: &'static str,
    /// What it must be, and what it is.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl CouponCampaign {
    /// Reads and validates one manifest.
    pub fn from_yaml(text: &str) -> Result<Self, ManifestError> {
        let manifest: Self = serde_yaml_ng::from_str(text)?;
        let problems = manifest.problems();
        if problems.is_empty() {
            Ok(manifest)
        } else {
            Err(Problems(problems).into())
        }
    }

    /// The campaign's name; one without a namespace lives in `default_namespace`.
    pub fn name(&self, default_namespace: &str) -> Result<CampaignName, NameError> {
        let namespace = self.metadata.namespace.as_deref().unwrap_or(default_namespace);
        CampaignName::new(namespace, &self.metadata.name)
    }

    /// All that is wrong, in the order of the fields.
    pub fn problems(&self) -> Vec<Problem> {
        let mut checks = Checks::default();
        checks.want("apiVersion", self.api_version == API_VERSION, || {
            format!("must be {API_VERSION}, is {:?}", self.api_version)
        });
        checks.want("kind", self.kind == KIND, || {
            format!("must be {KIND}, is {:?}", self.kind)
        });
        if let Err(error) = self.name("default") {
            let path = match &error {
                NameError::NotALabel { part: "namespace", .. } => "metadata.namespace",
                _ => "metadata.name",
            };
            checks.want(path, false, || error.to_string());
        }
        checks.0.extend(self.spec.problems());
        checks.0
    }
}

impl CouponCampaignSpec {
    /// All that is wrong, in the order of the fields.
    pub fn problems(&self) -> Vec<Problem> {
        let mut checks = Checks::default();
        checks.between("spec.quantity", self.quantity, 0, QUANTITY_MAX);
        checks.duration("spec.ttl", self.ttl, TTL_MIN);
        if let (Some(opens), Some(closes)) = (self.opens_at, self.closes_at) {
            checks.want("spec.closesAt", closes > opens, || {
                format!("must be after spec.opensAt ({opens}), is {closes}")
            });
        }
        let prefix = &self.coupon.code_prefix;
        let letters = prefix.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
        checks.want(
            "spec.coupon.codePrefix",
            letters && prefix.len() <= CODE_PREFIX_MAX,
            || format!("must be 0 to {CODE_PREFIX_MAX} of A-Z and 0-9, is {prefix:?}"),
        );
        if let Some(valid_for) = self.coupon.valid_for {
            checks.duration("spec.coupon.validFor", valid_for, SignedDuration::from_millis(1));
        }
        if let Some(discount) = self.coupon.discount {
            let most = match discount.unit {
                DiscountUnit::Percentage => 100,
                DiscountUnit::Amount => i64::MAX,
            };
            checks.between("spec.coupon.discount.value", discount.value, 0, most);
        }
        checks.at_least("spec.intake.replicas", self.intake.replicas.into(), 0);
        checks.duration("spec.intake.warmup", self.intake.warmup, SignedDuration::ZERO);
        let worker = &self.worker;
        checks.at_least("spec.worker.minReplicas", worker.min_replicas.into(), 0);
        checks.want(
            "spec.worker.maxReplicas",
            worker.max_replicas >= worker.min_replicas.max(1),
            || {
                format!(
                    "must be ≥ 1 and ≥ spec.worker.minReplicas ({}), is {}",
                    worker.min_replicas, worker.max_replicas
                )
            },
        );
        checks.at_least("spec.worker.targetBacklog", worker.target_backlog, 1);
        checks.0
    }

    /// What is written to Postgres. Times are kept to the millisecond, as Redis reads them.
    pub fn terms(&self) -> CampaignTerms {
        let to_millisecond = |at: Timestamp| Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at);
        CampaignTerms {
            quantity: self.quantity,
            ttl_ms: self.ttl.as_millis(),
            opens_at: self.opens_at.map(to_millisecond),
            closes_at: self.closes_at.map(to_millisecond),
            paused: self.paused,
            on_cancel: self.on_cancel,
            on_dead_letter: self.on_dead_letter,
            code_prefix: self.coupon.code_prefix.clone(),
            valid_for_ms: self.coupon.valid_for.map(HumanDuration::as_millis),
            details: serde_json::json!({
                "discount": self.coupon.discount,
                "metadata": self.coupon.metadata,
            }),
        }
    }
}

#[derive(Default)]
struct Checks(Vec<Problem>);

impl Checks {
    fn want(&mut self, path: &'static str, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Problem {
                path,
                message: message(),
            });
        }
    }

    fn at_least(&mut self, path: &'static str, value: i64, least: i64) {
        self.want(path, value >= least, || format!("must be ≥ {least}, is {value}"));
    }

    fn between(&mut self, path: &'static str, value: i64, least: i64, most: i64) {
        self.at_least(path, value, least);
        self.want(path, value <= most, || format!("must be ≤ {most}, is {value}"));
    }

    fn duration(&mut self, path: &'static str, value: HumanDuration, least: SignedDuration) {
        self.want(path, value.0 >= least, || {
            format!("must be ≥ {}, is {value}", HumanDuration(least))
        });
        self.want(path, value.0 <= DURATION_MAX, || {
            format!("must be ≤ {} (100 years), is {value}", HumanDuration(DURATION_MAX))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESIGN: &str = "
apiVersion: coupon-operator.dev/v1alpha1
kind: CouponCampaign
metadata:
  name: black-friday
  namespace: shop
spec:
  quantity: 10000
  ttl: 24h
  opensAt: 2026-11-27T00:00:00Z
  closesAt: 2026-11-28T00:00:00Z
  paused: false
  onCancel: Restock
  onDeadLetter: Park
  deletionPolicy: Retain
  coupon: {codePrefix: BF26, validFor: 720h, discount: {type: Percentage, value: 20}, metadata: {}}
  intake: {replicas: 4, warmup: 5m}
  worker: {minReplicas: 1, maxReplicas: 8, targetBacklog: 5000}
";

    fn with_spec(spec: &str) -> Result<CouponCampaign, ManifestError> {
        let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
        CouponCampaign::from_yaml(&format!(
            "apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: sale}}\nspec:\n{spec}"
        ))
    }

    #[test]
    fn a_full_manifest_gives_the_terms() {
        let manifest = CouponCampaign::from_yaml(DESIGN).expect("valid");
        assert_eq!(manifest.name("other").expect("valid").to_string(), "shop/black-friday");
        let terms = manifest.spec.terms();
        assert_eq!(terms.quantity, 10_000);
        assert_eq!(terms.ttl_ms, 86_400_000);
        assert_eq!(terms.opens_at, Some("2026-11-27T00:00:00Z".parse().expect("time")));
        assert_eq!(terms.valid_for_ms, Some(720 * 3_600_000));
        assert_eq!(terms.code_prefix, "BF26");
        assert_eq!(terms.details["discount"]["type"], "Percentage");
    }

    #[test]
    fn only_the_quantity_is_needed() {
        let manifest = with_spec("quantity: 5").expect("valid");
        assert_eq!(manifest.name("shop").expect("valid").to_string(), "shop/sale");
        let terms = manifest.spec.terms();
        assert_eq!(
            (terms.ttl_ms, terms.opens_at, terms.closes_at),
            (86_400_000, None, None)
        );
        assert_eq!(
            (terms.on_cancel, terms.on_dead_letter),
            (OnCancel::Restock, OnDeadLetter::Park)
        );
        assert_eq!((terms.paused, terms.valid_for_ms), (false, None));
        assert_eq!(manifest.spec.deletion_policy, DeletionPolicy::Retain);
        assert_eq!(manifest.spec.worker, WorkerBounds::default());
    }

    #[test]
    fn a_manifest_reads_what_it_wrote() {
        let manifest = CouponCampaign::from_yaml(DESIGN).expect("valid");
        let text = serde_yaml_ng::to_string(&manifest).expect("yaml");
        assert_eq!(CouponCampaign::from_yaml(&text).expect("valid"), manifest);
        assert!(text.contains("ttl: 24h") && text.contains("validFor: 720h"), "{text}");
    }

    #[test]
    fn every_bad_value_is_named_with_its_field() {
        for (spec, problem) in [
            ("quantity: -1", "spec.quantity: must be ≥ 0, is -1"),
            (
                "quantity: 9007199254740992",
                "spec.quantity: must be ≤ 9007199254740991",
            ),
            ("quantity: 1\nttl: 0s", "spec.ttl: must be ≥ 1m, is 0s"),
            ("quantity: 1\nttl: -5m", "spec.ttl: must be ≥ 1m, is 5m ago"),
            ("quantity: 1\nttl: 59s", "spec.ttl: must be ≥ 1m, is 59s"),
            ("quantity: 1\nttl: 900000h", "spec.ttl: must be ≤ 876600h"),
            (
                "quantity: 1\nopensAt: 2026-11-28T00:00:00Z\nclosesAt: 2026-11-27T00:00:00Z",
                "spec.closesAt: must be after spec.opensAt (2026-11-28T00:00:00Z), is 2026-11-27T00:00:00Z",
            ),
            (
                "quantity: 1\nopensAt: 2026-11-27T00:00:00Z\nclosesAt: 2026-11-27T00:00:00Z",
                "spec.closesAt: must be after",
            ),
            (
                "quantity: 1\ncoupon: {codePrefix: bf}",
                "spec.coupon.codePrefix: must be 0 to 16",
            ),
            (
                "quantity: 1\ncoupon: {codePrefix: ABCDEFGHIJKLMNOPQ}",
                "spec.coupon.codePrefix: must be 0 to 16",
            ),
            (
                "quantity: 1\ncoupon: {validFor: 0s}",
                "spec.coupon.validFor: must be ≥ 1ms",
            ),
            (
                "quantity: 1\ncoupon: {discount: {type: Percentage, value: 101}}",
                "spec.coupon.discount.value: must be ≤ 100, is 101",
            ),
            (
                "quantity: 1\ncoupon: {discount: {type: Amount, value: -1}}",
                "spec.coupon.discount.value: must be ≥ 0, is -1",
            ),
            (
                "quantity: 1\nintake: {replicas: -1}",
                "spec.intake.replicas: must be ≥ 0, is -1",
            ),
            ("quantity: 1\nintake: {warmup: -1m}", "spec.intake.warmup: must be ≥ 0s"),
            (
                "quantity: 1\nworker: {minReplicas: 3, maxReplicas: 2}",
                "spec.worker.maxReplicas: must be ≥ 1 and ≥ spec.worker.minReplicas (3), is 2",
            ),
            (
                "quantity: 1\nworker: {targetBacklog: 0}",
                "spec.worker.targetBacklog: must be ≥ 1, is 0",
            ),
        ] {
            match with_spec(spec) {
                Err(ManifestError::Invalid(Problems(problems))) => {
                    assert_eq!(problems.len(), 1, "{spec}: {problems:?}");
                    assert!(problems[0].to_string().starts_with(problem), "{spec}: {}", problems[0]);
                }
                other => panic!("{spec}: {other:?}"),
            }
        }
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let error = CouponCampaign::from_yaml(
            "apiVersion: v1\nkind: Coupon\nmetadata: {name: Sale, namespace: shop}\nspec: {quantity: -1, ttl: 0s}",
        )
        .expect_err("refused");
        let ManifestError::Invalid(Problems(problems)) = error else {
            panic!("{error}")
        };
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path).collect();
        assert_eq!(
            paths,
            ["apiVersion", "kind", "metadata.name", "spec.quantity", "spec.ttl"]
        );
    }

    #[test]
    fn a_field_of_the_wrong_kind_is_named() {
        for (spec, named) in [
            ("quantity: many", "spec.quantity"),
            ("quantity: 1\nttl: soon", "\"soon\" is not a duration"),
            ("quantity: 1\nttl: \"5\"", "\"5\" is not a duration"),
            ("quantity: 1\nopensAt: tomorrow", "spec.opensAt"),
            ("quantity: 1\nonCancel: Keep", "spec.onCancel"),
            ("quantity: 1\nclosedAt: 2026-11-27T00:00:00Z", "closedAt"),
            ("quantity: 1\nworker: {replicas: 1}", "replicas"),
            ("ttl: 24h", "quantity"),
        ] {
            match with_spec(spec) {
                Err(error @ ManifestError::Yaml(_)) => {
                    assert!(error.to_string().contains(named), "{spec}: {error}");
                }
                other => panic!("{spec}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_examples_are_valid() {
        for (file, text) in [
            ("flash-sale", include_str!("../../examples/flash-sale.yaml")),
            ("black-friday", include_str!("../../examples/black-friday.yaml")),
            ("newsletter", include_str!("../../examples/newsletter.yaml")),
            ("voucher", include_str!("../../examples/voucher.yaml")),
        ] {
            let manifest = CouponCampaign::from_yaml(text).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert_eq!(manifest.metadata.name, file);
        }
    }
}
