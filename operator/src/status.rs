//! What all writes to a campaign's object have in common.

use kube::{Resource, api::ObjectMeta};

use crate::resource::CouponCampaign;

/// Owns what the operator applies.
pub const FIELD_MANAGER: &str = "coupon-operator";

/// The head of an apply. The uid goes along: an apply must neither create an object that was just deleted, nor speak
/// about its successor.
pub fn identity(meta: &ObjectMeta) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": CouponCampaign::api_version(&()),
        "kind": CouponCampaign::kind(&()),
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
    })
}
