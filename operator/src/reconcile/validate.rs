//! Step 2: what the object wants, or what is wrong with it. The API server has refused most of it already; what the
//! schema cannot say, or an older CRD let pass, is found here.

use campaign::{
    manifest::{CouponCampaignSpec, DeletionPolicy, Problem},
    name::{CampaignName, NameError},
    postgres::campaign::CampaignTerms,
};

use crate::resource::{CouponCampaign, UnreadableSpec};

/// A spec that can be applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The whole spec.
    pub spec: CouponCampaignSpec,
    /// What is written to Postgres.
    pub terms: CampaignTerms,
}

impl Wanted {
    /// What a deletion does.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.spec.deletion_policy
    }
}

/// Why a spec cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCampaign {
    /// The object's name or namespace is none of a campaign.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The object is not of the types that this release knows.
    #[error("the object cannot be read: {0}; is the CRD of another release installed?")]
    Undecodable(String),
    /// A field that nobody can read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableSpec),
    /// Values that cannot be meant.
    #[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; "))]
    Problems(Vec<Problem>),
}

/// The campaign's name.
pub fn name(object: &kube::api::ObjectMeta) -> Result<CampaignName, InvalidCampaign> {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    Ok(CampaignName::new(&text(&object.namespace), &text(&object.name))?)
}

/// What the object wants.
pub fn validate(object: &CouponCampaign) -> Result<Wanted, InvalidCampaign> {
    let spec = object.spec.manifest()?;
    let problems = spec.problems();
    if problems.is_empty() {
        Ok(Wanted {
            terms: spec.terms(),
            spec,
        })
    } else {
        Err(InvalidCampaign::Problems(problems))
    }
}
