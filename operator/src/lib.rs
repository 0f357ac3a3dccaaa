//! Keeps campaigns as their `CouponCampaign` objects want them, and the Deployments as large as the campaigns need.
//!
//! One replica leads (`lease`). It watches the objects (`controller`) and reconciles each in five steps (`reconcile`):
//! load → validate → plan → apply → update status. What each campaign wants of pods goes to the `board`; one task
//! (`scale`) turns the sum (`demand`) into replicas.

pub mod board;
pub mod conditions;
pub mod controller;
pub mod crd;
pub mod demand;
pub mod drift;
pub mod events;
pub mod finalizer;
pub mod health;
pub mod lease;
pub mod let_go;
pub mod metrics;
pub mod reconcile;
pub mod resource;
#[cfg(test)]
mod samples;
pub mod scale;
pub mod schedule;
pub mod servers;
pub mod settings;
pub mod startup;
pub mod status;
