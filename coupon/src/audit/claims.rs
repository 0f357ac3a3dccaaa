//! Kafka against Postgres: every stored claim has an outcome, and every outcome has its claim.

use std::collections::HashMap;

use campaign::{
    identity::{BatchId, RequestId, Reservation},
    postgres::{
        audit::{AuditedCoupon, AuditedParked, AuditedRejection},
        batch::BatchOutcome,
        persist::Reason,
    },
    record::ClaimRecord,
};

use super::finding::{FindingKind, Findings};

/// Takes what Postgres decided, then the records.
#[derive(Default)]
pub struct Claims {
    batches: HashMap<BatchId, Decided>,
    coupons: HashMap<RequestId, Won>,
    rejections: HashMap<Reservation, RequestId>,
    parked: HashMap<Reservation, RequestId>,
    revoked: u64,
}

struct Decided {
    outcome: BatchOutcome,
    in_kafka: bool,
}

struct Won {
    reservation: Reservation,
    in_kafka: bool,
}

impl Claims {
    /// A decided batch.
    pub fn batch(&mut self, batch: BatchId, outcome: BatchOutcome) {
        self.batches.insert(
            batch,
            Decided {
                outcome,
                in_kafka: false,
            },
        );
    }

    /// A coupon.
    pub fn coupon(&mut self, coupon: &AuditedCoupon) {
        self.coupons.insert(
            coupon.request,
            Won {
                reservation: coupon.reservation.clone(),
                in_kafka: false,
            },
        );
    }

    /// A parked claim, discarded or not.
    pub fn parked(&mut self, parked: &AuditedParked) {
        self.parked.insert(parked.reservation.clone(), parked.request);
    }

    /// A rejected claim; after the batches.
    pub fn rejection(&mut self, rejection: AuditedRejection, findings: &mut Findings) {
        let stored = self
            .batches
            .get(&rejection.reservation.batch)
            .is_some_and(|batch| batch.outcome == BatchOutcome::Stored);
        if stored {
            self.revoked += 1;
            let impossible = [Reason::OutOfStock, Reason::AlreadyIssued];
            if impossible.iter().any(|reason| reason.as_str() == rejection.reason) {
                let text = format_args!(
                    "reservation {}, request {}: {}",
                    rejection.reservation, rejection.request, rejection.reason
                );
                findings.add(FindingKind::ImpossibleRejection, text);
            }
        }
        self.rejections.insert(rejection.reservation, rejection.request);
    }

    /// A record before the consumed offset.
    pub fn consumed_record(&mut self, record: &ClaimRecord, place: impl std::fmt::Display, findings: &mut Findings) {
        let Some(batch) = self.batches.get_mut(&record.batch) else {
            findings.add(
                FindingKind::RecordUndecided,
                format_args!("batch {} at {place}", record.batch),
            );
            return;
        };
        batch.in_kafka = true;
        for claim in &record.claims {
            let reservation = record.reservation(claim);
            let won = self.coupons.get_mut(&claim.request_id);
            let issued = won.is_some();
            if let Some(won) = won
                && won.reservation == reservation
            {
                won.in_kafka = true;
            }
            let decided =
                issued || self.rejections.contains_key(&reservation) || self.parked.contains_key(&reservation);
            if !decided {
                let text = format_args!(
                    "user {}, request {}, reservation {reservation}",
                    claim.user_id, claim.request_id
                );
                findings.add(FindingKind::ClaimWithoutOutcome, text);
            }
        }
    }

    /// Everything is in. `whole_log`: nothing of the topic was removed by retention. Answers how many stored claims were
    /// rejected.
    pub fn finish(self, whole_log: bool, findings: &mut Findings) -> u64 {
        let mut coupons: Vec<(&RequestId, &Won)> = self.coupons.iter().collect();
        coupons.sort_by_key(|(request, _)| **request);
        for (request, won) in coupons {
            let text = format!("coupon {request}, reservation {}", won.reservation);
            let batch = self.batches.get(&won.reservation.batch);
            if batch.is_none_or(|batch| batch.outcome != BatchOutcome::Stored) {
                findings.add(FindingKind::CouponWithoutBatch, &text);
            } else if whole_log && !won.in_kafka {
                findings.add(FindingKind::CouponWithoutClaim, &text);
            }
            if self.rejections.contains_key(&won.reservation) {
                findings.add(FindingKind::RejectedAndIssued, &text);
            }
        }
        if whole_log {
            let mut missing: Vec<&BatchId> = self
                .batches
                .iter()
                .filter(|(_, batch)| batch.outcome != BatchOutcome::Abandoned && !batch.in_kafka)
                .map(|(batch, _)| batch)
                .collect();
            missing.sort();
            for batch in missing {
                findings.add(FindingKind::BatchWithoutRecord, format_args!("batch {batch}"));
            }
        }
        self.revoked
    }
}
