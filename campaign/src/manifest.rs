//! The `CouponCampaign` manifest: the same YAML for Kubernetes and for the command line.
