//! Coupons against their events: the outbox, the lifecycle topic and the projection.

use std::collections::HashMap;

use campaign::{
    event::EventType,
    identity::RequestId,
    postgres::{
        audit::{AuditedActivity, AuditedCoupon},
        coupon::CouponStatus,
    },
};

use super::finding::{FindingKind, Findings};

const TYPES: [EventType; 3] = [EventType::Issued, EventType::Used, EventType::Canceled];

/// Takes coupons, then the projection, then the topic.
#[derive(Default)]
pub struct Events {
    coupons: HashMap<RequestId, Seen>,
}

#[derive(Default)]
struct Seen {
    due: [bool; 3],
    projected: [u8; 3],
    published: [bool; 3],
}

/// How much of the events can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complete {
    /// Nothing waits in the outbox or before the projection: what is missing is lost.
    pub nothing_waits: bool,
    /// Nothing of the topic was removed by retention.
    pub whole_log: bool,
}

fn place(event: EventType) -> usize {
    match event {
        EventType::Issued => 0,
        EventType::Used => 1,
        EventType::Canceled => 2,
    }
}

impl Events {
    /// A coupon.
    pub fn coupon(&mut self, coupon: &AuditedCoupon) {
        let seen = self.coupons.entry(coupon.request).or_default();
        seen.due[place(EventType::Issued)] = true;
        match coupon.status {
            CouponStatus::Issued => {}
            CouponStatus::Used => seen.due[place(EventType::Used)] = true,
            CouponStatus::Canceled => seen.due[place(EventType::Canceled)] = true,
        }
    }

    /// A row of the projection.
    pub fn activity(&mut self, activity: &AuditedActivity) {
        let seen = self.coupons.entry(activity.coupon).or_default();
        let count = &mut seen.projected[place(activity.event_type)];
        *count = count.saturating_add(1);
    }

    /// An event of the topic that was consumed. Repeats are allowed.
    pub fn published(&mut self, event: EventType, coupon: RequestId) {
        self.coupons.entry(coupon).or_default().published[place(event)] = true;
    }

    /// Everything is in.
    pub fn finish(self, complete: Complete, findings: &mut Findings) {
        let mut coupons: Vec<(RequestId, Seen)> = self.coupons.into_iter().collect();
        coupons.sort_by_key(|(coupon, _)| *coupon);
        for (coupon, seen) in coupons {
            for event in TYPES {
                let i = place(event);
                let text = format!("{} of coupon {coupon}", event.as_str());
                match (seen.due[i], seen.projected[i]) {
                    (true, 0) if complete.nothing_waits => findings.add(FindingKind::ActivityMissing, &text),
                    (false, 1..) => findings.add(FindingKind::ActivityUnfounded, &text),
                    _ => {}
                }
                if seen.projected[i] > 1 {
                    findings.add(FindingKind::ActivityRepeated, &text);
                }
                match (seen.published[i], seen.projected[i]) {
                    (true, 0) => findings.add(FindingKind::EventNotProjected, &text),
                    (false, 1..) if complete.whole_log => findings.add(FindingKind::ActivityNotPublished, &text),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn coupon(status: CouponStatus) -> AuditedCoupon {
        AuditedCoupon {
            user: "u".parse().expect("valid"),
            request: RequestId(Uuid::nil()),
            reservation: "abcdefgh-1.0".parse().expect("valid"),
            status,
            slot_returned: false,
        }
    }

    fn found(status: CouponStatus, projected: &[EventType], published: &[EventType], waits: bool) -> Vec<FindingKind> {
        let mut events = Events::default();
        let coupon = coupon(status);
        events.coupon(&coupon);
        for &event_type in projected {
            events.activity(&AuditedActivity {
                event: Uuid::new_v4(),
                event_type,
                coupon: coupon.request,
            });
        }
        for &event in published {
            events.published(event, coupon.request);
        }
        let mut findings = Findings::of(None);
        let complete = Complete {
            nothing_waits: !waits,
            whole_log: true,
        };
        events.finish(complete, &mut findings);
        findings.into_list().into_iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn every_coupon_has_the_events_that_its_row_tells_of_once() {
        use CouponStatus as Status;
        use EventType::{Canceled, Issued as New, Used};
        use FindingKind::*;
        let none: &[EventType] = &[];
        for (status, projected, published, waits, kinds) in [
            (Status::Issued, &[New][..], &[New][..], false, &[][..]),
            // The relay may repeat.
            (Status::Issued, &[New], &[New, New], false, &[]),
            (Status::Used, &[New, Used], &[New, Used], false, &[]),
            (Status::Issued, none, none, true, &[]),
            (Status::Issued, none, none, false, &[ActivityMissing]),
            (
                Status::Issued,
                none,
                &[New],
                false,
                &[ActivityMissing, EventNotProjected],
            ),
            (Status::Used, &[New], &[New], false, &[ActivityMissing]),
            (
                Status::Issued,
                &[New, Canceled],
                &[New, Canceled],
                false,
                &[ActivityUnfounded],
            ),
            (Status::Issued, &[New, New], &[New], false, &[ActivityRepeated]),
            (
                Status::Canceled,
                &[New, Canceled],
                &[New],
                false,
                &[ActivityNotPublished],
            ),
        ] {
            assert_eq!(
                found(status, projected, published, waits),
                kinds,
                "{status:?} {projected:?} {published:?}"
            );
        }
    }
}
