//! Rows, states and specs for table tests.

use campaign::{
    identity::{CampaignId, Epoch},
    manifest::CouponCampaign,
    name::CampaignName,
    postgres::campaign::CampaignRow,
    redis::state::{StateAnswer, StateNumbers, StateStatus},
};
use jiff::Timestamp;
use uuid::Uuid;

use crate::reconcile::{
    load::{Loaded, Unreadable},
    validate::Wanted,
};

pub const EPOCH: Epoch = Epoch(1_700_000_000);

pub fn at(text: &str) -> Timestamp {
    format!("2026-11-27T{text}Z").parse().expect("time")
}

/// 100 coupons, open from 10 to 12.
pub fn wanted() -> Wanted {
    wanted_with("quantity: 100, opensAt: 2026-11-27T10:00:00Z, closesAt: 2026-11-27T12:00:00Z")
}

pub fn wanted_with(spec: &str) -> Wanted {
    let manifest = CouponCampaign::from_yaml(&format!(
        "{{apiVersion: coupon-operator.dev/v1alpha1, kind: CouponCampaign, metadata: {{name: sale}}, spec: {{{spec}}}}}"
    ))
    .expect("valid");
    Wanted {
        terms: manifest.spec.terms(),
        spec: manifest.spec,
    }
}

pub fn id() -> CampaignId {
    CampaignId(Uuid::from_u128(1))
}

pub fn row(wanted: &Wanted) -> CampaignRow {
    CampaignRow {
        id: id(),
        name: CampaignName::new("shop", "sale").expect("valid"),
        terms: wanted.terms.clone(),
        issued: 0,
        parked: 0,
        epoch: EPOCH,
        fence: 0,
        revision: 1,
    }
}

pub fn numbers(wanted: &Wanted) -> StateNumbers {
    StateNumbers {
        campaign: id(),
        epoch: EPOCH,
        revision: 1,
        status: StateStatus::Open,
        quantity: wanted.terms.quantity,
        taken: 0,
        pending: 0,
        oldest_pending_ms: None,
        now_ms: 0,
        opens_at: wanted.terms.opens_at,
        closes_at: wanted.terms.closes_at,
    }
}

/// A campaign that is as `wanted`, at 11.
pub fn loaded(wanted: &Wanted) -> Loaded {
    Loaded {
        now: at("11:00:00"),
        row: Ok(Some(row(wanted))),
        state: Ok(StateAnswer::Present(numbers(wanted))),
        restocks: Ok(0),
        shortened: None,
    }
}

/// The same with other numbers.
pub fn with_numbers(wanted: &Wanted, change: impl FnOnce(&mut StateNumbers)) -> Loaded {
    let mut numbers = numbers(wanted);
    change(&mut numbers);
    Loaded {
        state: Ok(StateAnswer::Present(numbers)),
        ..loaded(wanted)
    }
}

/// The same with another row.
pub fn with_row(wanted: &Wanted, change: impl FnOnce(&mut CampaignRow)) -> Loaded {
    let mut row = row(wanted);
    change(&mut row);
    Loaded {
        row: Ok(Some(row)),
        ..loaded(wanted)
    }
}

pub fn with_state(wanted: &Wanted, state: StateAnswer) -> Loaded {
    Loaded {
        state: Ok(state),
        ..loaded(wanted)
    }
}

pub fn redis_out(wanted: &Wanted) -> Loaded {
    Loaded {
        state: Err(Unreadable::Redis("connection refused".to_owned())),
        ..loaded(wanted)
    }
}

pub fn postgres_out(wanted: &Wanted) -> Loaded {
    Loaded {
        row: Err(Unreadable::Postgres("connection refused".to_owned())),
        ..loaded(wanted)
    }
}
