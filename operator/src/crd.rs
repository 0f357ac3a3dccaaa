//! The CRD as it is checked in under `crds/`.

use kube::CustomResourceExt;

use crate::resource::CouponCampaign;

const HEAD: &str =
    "# Generated from operator/src/resource.rs: cargo run --bin operator -- crd > crds/couponcampaigns.yaml\n";

/// The CRD cannot be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("the CRD cannot be written as YAML: {0}")]
pub struct CrdError(#[from] serde_yaml_ng::Error);

/// The whole file.
pub fn yaml() -> Result<String, CrdError> {
    Ok(format!("{HEAD}{}", serde_yaml_ng::to_string(&CouponCampaign::crd())?))
}
