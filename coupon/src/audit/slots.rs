//! Redis against Postgres: every slot that is taken has somebody who holds it, and the other way round.

use std::collections::HashMap;

use campaign::{
    conservation::{Drift, Tally},
    identity::{BatchId, RequestId},
    postgres::{
        audit::{AuditedCoupon, AuditedParked},
        campaign::CampaignRow,
        coupon::CouponStatus,
    },
    redis::{
        audit::AuditedMarker,
        state::{StateAnswer, StateNumbers},
    },
};

use super::{
    Expect,
    finding::{FindingKind, Findings},
};

/// What Redis has of a campaign besides its markers.
#[derive(Clone, Debug)]
pub struct StateReading {
    /// What the state script answered.
    pub answer: StateAnswer,
    /// Batches that are pending.
    pub pending: Vec<BatchId>,
    /// Claims that hold a slot, by pending batch.
    pub pending_claims: Vec<(BatchId, i64)>,
    /// Keys that will never expire.
    pub lasting_keys: Vec<String>,
}

/// Takes what both sides have, user by user; the markers first.
pub struct Slots {
    expect: Expect,
    state: StateReading,
    markers: HashMap<String, AuditedMarker>,
    holding_markers: i64,
    last_user: Option<String>,
    occupying: i64,
    parked: i64,
    restocks: i64,
}

/// What a user's row says about his slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// It holds one.
    Holds,
    /// It gave it back.
    Returned,
}

impl Slots {
    /// Begins with the state.
    pub fn new(expect: Expect, state: StateReading) -> Self {
        Self {
            expect,
            state,
            markers: HashMap::new(),
            holding_markers: 0,
            last_user: None,
            occupying: 0,
            parked: 0,
            restocks: 0,
        }
    }

    /// Whether there is a state to be compared with.
    fn numbers(&self) -> Option<&StateNumbers> {
        match &self.state.answer {
            StateAnswer::Present(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// Whether nothing may be on its way.
    pub fn expects_quiet(&self) -> bool {
        self.expect == Expect::Quiet
    }

    /// A marker; a repeat of a scan counts once.
    pub fn marker(&mut self, user: String, marker: AuditedMarker) {
        self.markers.insert(user, marker);
    }

    /// All markers are in.
    pub fn markers_end(&mut self) {
        let holds = |marker: &&AuditedMarker| matches!(marker, AuditedMarker::Holds(..));
        self.holding_markers = self.markers.values().filter(holds).count() as i64;
    }

    /// Cancels that Redis has not heard of yet.
    pub fn restocks(&mut self, waiting: i64) {
        self.restocks = waiting;
    }

    /// A coupon, in the order of the users.
    pub fn coupon(&mut self, coupon: &AuditedCoupon, findings: &mut Findings) {
        let user = coupon.user.as_str();
        if self.last_user.as_deref() == Some(user) {
            findings.add(FindingKind::UserTwice, format_args!("user {user}"));
        }
        self.last_user = Some(user.to_owned());
        let due = if coupon.status == CouponStatus::Canceled && coupon.slot_returned {
            Due::Returned
        } else {
            self.occupying += 1;
            Due::Holds
        };
        self.meet(user, coupon.request, due, findings);
    }

    /// A parked claim.
    pub fn parked(&mut self, parked: &AuditedParked, findings: &mut Findings) {
        if parked.discarded {
            // Its release is on its way: the marker may be there or not, but only this one.
            let ours = |marker: &AuditedMarker| matches!(marker, AuditedMarker::Holds(_, reservation) if *reservation == parked.reservation);
            if self.markers.get(parked.user.as_str()).is_some_and(ours) {
                self.markers.remove(parked.user.as_str());
            }
            return;
        }
        self.parked += 1;
        self.meet(parked.user.as_str(), parked.request, Due::Holds, findings);
    }

    fn meet(&mut self, user: &str, request: RequestId, due: Due, findings: &mut Findings) {
        let Some(marker) = self.markers.remove(user) else {
            if self.numbers().is_some() {
                findings.add(
                    FindingKind::MarkerMissing,
                    format_args!("user {user}, request {request}"),
                );
            }
            return;
        };
        let (holder, holds) = match &marker {
            AuditedMarker::Holds(holder, _) => (*holder, Due::Holds),
            AuditedMarker::Canceled(holder) => (*holder, Due::Returned),
            AuditedMarker::Unreadable(value) => {
                findings.add(FindingKind::MarkerUnreadable, format_args!("user {user}: {value:?}"));
                return;
            }
        };
        if holder != request {
            let text = format_args!("user {user}: marker {holder}, row {request}");
            findings.add(FindingKind::MarkerWrongRequest, text);
        } else if holds != due && !(due == Due::Returned && self.restocks > 0 && self.expect == Expect::Running) {
            findings.add(
                FindingKind::MarkerWrongStatus,
                format_args!("user {user}, request {request}"),
            );
        }
    }

    /// The numbers; everything is in. `over`: the window is over, so that the state may have expired.
    pub fn finish(mut self, row: &CampaignRow, over: bool, findings: &mut Findings) -> Option<Tally> {
        self.leftover_markers(findings);
        if row.issued != self.occupying {
            let text = format_args!("campaign.issued {}, coupons {}", row.issued, self.occupying);
            findings.add(FindingKind::IssuedCountWrong, text);
        }
        if row.parked != self.parked {
            let text = format_args!("campaign.parked {}, entries {}", row.parked, self.parked);
            findings.add(FindingKind::ParkedCountWrong, text);
        }
        for key in &self.state.lasting_keys {
            findings.add(FindingKind::KeyWithoutTtl, key);
        }
        match &self.state.answer {
            StateAnswer::Present(numbers) => {
                self.state_numbers(numbers, row, findings);
                Some(self.tally(numbers, findings))
            }
            StateAnswer::Rebuilding { epoch, .. } => {
                if self.expect == Expect::Quiet {
                    findings.add(FindingKind::StateRebuilding, format_args!("epoch {epoch}"));
                }
                None
            }
            StateAnswer::NotInitialized => {
                if row.epoch.0 != 0 && !over {
                    findings.add(FindingKind::StateMissing, format_args!("epoch {}", row.epoch));
                }
                let held = self.occupying + self.parked;
                if held > row.terms.quantity {
                    findings.add(FindingKind::Oversold, format_args!("by {}", held - row.terms.quantity));
                }
                None
            }
        }
    }

    fn leftover_markers(&mut self, findings: &mut Findings) {
        let pending: std::collections::HashSet<&BatchId> = self.state.pending.iter().collect();
        let mut leftover: Vec<(&String, &AuditedMarker)> = self.markers.iter().collect();
        leftover.sort_by_key(|(user, _)| *user);
        for (user, marker) in leftover {
            match marker {
                AuditedMarker::Holds(_, reservation)
                    if self.expect == Expect::Running && pending.contains(&reservation.batch) => {}
                AuditedMarker::Holds(request, _) | AuditedMarker::Canceled(request) => {
                    let text = format_args!("user {user}, request {request}");
                    findings.add(FindingKind::MarkerWithoutRow, text);
                }
                AuditedMarker::Unreadable(value) => {
                    findings.add(FindingKind::MarkerUnreadable, format_args!("user {user}: {value:?}"));
                }
            }
        }
    }

    fn state_numbers(&self, numbers: &StateNumbers, row: &CampaignRow, findings: &mut Findings) {
        if numbers.campaign != row.id {
            let text = format_args!("Redis {}, Postgres {}", numbers.campaign, row.id);
            findings.add(FindingKind::StateOfAnotherCampaign, text);
        }
        if numbers.epoch != row.epoch {
            let text = format_args!("Redis {}, Postgres {}", numbers.epoch, row.epoch);
            findings.add(FindingKind::EpochDiffers, text);
        }
        if numbers.quantity != row.terms.quantity {
            let text = format_args!("Redis {}, Postgres {}", numbers.quantity, row.terms.quantity);
            findings.add(FindingKind::QuantityDiffers, text);
        }
        if numbers.taken != self.holding_markers {
            let text = format_args!("occupied-count {}, markers {}", numbers.taken, self.holding_markers);
            findings.add(FindingKind::OccupiedCountWrong, text);
        }
        let sum: i64 = self.state.pending_claims.iter().map(|(_, claims)| claims).sum();
        if numbers.pending != sum {
            let text = format_args!("meta.pending {}, pending-claims {sum}", numbers.pending);
            findings.add(FindingKind::PendingSumWrong, text);
        }
        let pending: std::collections::HashSet<&BatchId> = self.state.pending.iter().collect();
        for (batch, claims) in &self.state.pending_claims {
            if !pending.contains(batch) {
                let text = format_args!("batch {batch}: {claims} claims");
                findings.add(FindingKind::PendingClaimsOrphaned, text);
            }
        }
        if self.expect == Expect::Quiet {
            for batch in &self.state.pending {
                findings.add(FindingKind::PendingBatchLeft, format_args!("batch {batch}"));
            }
        }
    }

    /// Counted from the rows, not from the counters beside them: those are compared on their own.
    fn tally(&self, numbers: &StateNumbers, findings: &mut Findings) -> Tally {
        let tally = Tally {
            quantity: numbers.quantity,
            taken: numbers.taken,
            pending: numbers.pending,
            issued: self.occupying,
            parked: self.parked,
            restocks: self.restocks,
        };
        let drifts = match self.expect {
            Expect::Quiet => tally.check_quiet(),
            Expect::Running => tally.check_running(),
        };
        for drift in drifts {
            let kind = match drift {
                Drift::Oversold { .. } => FindingKind::Oversold,
                Drift::Leaked { .. } => FindingKind::SlotsLeaked,
                Drift::Unaccounted { .. } => FindingKind::SlotsUnaccounted,
                Drift::Unsettled { .. } => FindingKind::ClaimsPending,
            };
            findings.add(kind, drift);
        }
        tally
    }
}
