//! How many pods all campaigns together want, as a function of what is known of them and of the time.

use std::time::Duration;

use campaign::manifest::{CouponCampaignSpec, IntakeDemand, WorkerBounds};
use jiff::{SignedDuration, Timestamp};

/// Sold out and without a pending claim for this long: the campaign wants nothing any more.
pub const QUIET: SignedDuration = SignedDuration::from_mins(5);

/// What one campaign's demand follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignDemand {
    /// The window, if any.
    pub opens_at: Option<Timestamp>,
    /// The window, if any.
    pub closes_at: Option<Timestamp>,
    /// The door's share.
    pub intake: IntakeDemand,
    /// The workers' share.
    pub worker: WorkerBounds,
    /// What was last read; `None`: it cannot be read now.
    pub numbers: Option<DemandNumbers>,
}

/// What was read of one campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandNumbers {
    /// Claims that are reserved and not yet settled.
    pub pending: i64,
    /// Since when nothing is available and nothing is pending.
    pub quiet_since: Option<Timestamp>,
}

/// Pods that something wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Of the intake.
    pub intake: i32,
    /// Of the worker.
    pub worker: i32,
}

/// Between what a Deployment may be scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// When no campaign wants more.
    pub baseline: i32,
    /// In any case.
    pub ceiling: i32,
}

impl CampaignDemand {
    /// Of a campaign with this spec.
    pub fn new(spec: &CouponCampaignSpec, numbers: Option<DemandNumbers>) -> Self {
        Self {
            opens_at: spec.opens_at,
            closes_at: spec.closes_at,
            intake: spec.intake,
            worker: spec.worker,
            numbers,
        }
    }

    /// From the warm-up to the close, until it has been sold out and quiet for some minutes.
    fn is_active(&self, now: Timestamp) -> bool {
        let warm = self
            .opens_at
            .is_none_or(|opens_at| starts_warming(opens_at, self.intake.warmup.0) <= now);
        let over = self.closes_at.is_some_and(|closes_at| closes_at <= now);
        let quiet = self
            .numbers
            .and_then(|numbers| numbers.quiet_since)
            .is_some_and(|since| now.duration_since(since) >= QUIET);
        warm && !over && !quiet
    }

    /// Pods that this campaign wants, as far as it is known.
    pub fn pods(&self, now: Timestamp) -> Pods {
        let pending = self.numbers.map_or(0, |numbers| numbers.pending);
        let target = self.worker.target_backlog.max(1).unsigned_abs();
        let for_backlog = i32::try_from(pending.max(0).unsigned_abs().div_ceil(target)).unwrap_or(i32::MAX);
        let most = self.worker.max_replicas.max(self.worker.min_replicas);
        if self.is_active(now) {
            Pods {
                intake: self.intake.replicas,
                worker: for_backlog.clamp(self.worker.min_replicas, most),
            }
        } else {
            // What was accepted before the end is still worth its workers.
            Pods {
                intake: 0,
                worker: for_backlog.min(most),
            }
        }
    }
}

/// When the intake begins to be scaled for an opening.
pub fn starts_warming(opens_at: Timestamp, warmup: SignedDuration) -> Timestamp {
    opens_at.checked_sub(warmup).unwrap_or(Timestamp::MIN)
}

/// Pods that all campaigns together want. Where one of them cannot be read, never fewer than there are: unknown is not
/// zero.
pub fn demand(campaigns: &[CampaignDemand], now: Timestamp, current: Pods, intake: Bounds, worker: Bounds) -> Pods {
    let wanted = campaigns
        .iter()
        .map(|campaign| campaign.pods(now))
        .fold(Pods::default(), |sum, pods| Pods {
            intake: sum.intake.saturating_add(pods.intake),
            worker: sum.worker.saturating_add(pods.worker),
        });
    let unknown = campaigns.iter().any(|campaign| campaign.numbers.is_none());
    let within = |wanted: i32, current: i32, bounds: Bounds| {
        let wanted = wanted.max(bounds.baseline).min(bounds.ceiling);
        if unknown { wanted.max(current) } else { wanted }
    };
    Pods {
        intake: within(wanted.intake, current.intake, intake),
        worker: within(wanted.worker, current.worker, worker),
    }
}

/// Follows a demand up at once and down only after it has been lower for a while: a backlog comes and goes, pods should
/// not.
#[derive(Clone, Debug)]
pub struct Damper {
    down_after: Duration,
    seen: Vec<(std::time::Instant, i32)>,
}

impl Damper {
    /// Goes down after `down_after`.
    pub fn new(down_after: Duration) -> Self {
        Self {
            down_after,
            seen: Vec::new(),
        }
    }

    /// The largest demand of the last while, this one included. The first look takes `current` pods for a demand: whoever
    /// has just begun to look cannot know how long they have been wanted.
    pub fn damp(&mut self, current: i32, wanted: i32, now: std::time::Instant) -> i32 {
        let down_after = self.down_after;
        if self.seen.is_empty() {
            self.seen.push((now, current));
        }
        self.seen.retain(|(at, _)| now.duration_since(*at) < down_after);
        // A smaller one before a larger one can never be the largest again.
        while self.seen.last().is_some_and(|(_, earlier)| *earlier <= wanted) {
            self.seen.pop();
        }
        self.seen.push((now, wanted));
        self.seen.first().map_or(wanted, |(_, largest)| *largest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use campaign::manifest::HumanDuration;
    use proptest::prelude::*;

    use super::*;

    const INTAKE: Bounds = Bounds {
        baseline: 2,
        ceiling: 10,
    };
    const WORKER: Bounds = Bounds {
        baseline: 1,
        ceiling: 8,
    };
    const CURRENT: Pods = Pods { intake: 7, worker: 5 };

    fn at(text: &str) -> Timestamp {
        format!("2026-11-27T{text}Z").parse().expect("time")
    }

    fn campaign(pending: i64) -> CampaignDemand {
        CampaignDemand {
            opens_at: Some(at("10:00:00")),
            closes_at: Some(at("12:00:00")),
            intake: IntakeDemand {
                replicas: 4,
                warmup: HumanDuration(SignedDuration::from_mins(5)),
            },
            worker: WorkerBounds {
                min_replicas: 2,
                max_replicas: 6,
                target_backlog: 1_000,
            },
            numbers: Some(DemandNumbers {
                pending,
                quiet_since: None,
            }),
        }
    }

    fn quiet(since: &str) -> CampaignDemand {
        CampaignDemand {
            numbers: Some(DemandNumbers {
                pending: 0,
                quiet_since: Some(at(since)),
            }),
            ..campaign(0)
        }
    }

    fn unreadable() -> CampaignDemand {
        CampaignDemand {
            numbers: None,
            ..campaign(0)
        }
    }

    #[test]
    fn pods_follow_the_window_and_the_backlog() {
        for (what, campaigns, now, intake, worker) in [
            ("no campaign: the baseline", vec![], "11:00:00", 2, 1),
            ("before the warm-up", vec![campaign(0)], "09:54:59", 2, 1),
            ("from the warm-up on", vec![campaign(0)], "09:55:00", 4, 2),
            ("open", vec![campaign(0)], "11:00:00", 4, 2),
            ("a backlog", vec![campaign(3_001)], "11:00:00", 4, 4),
            (
                "a backlog beyond the campaign's bound",
                vec![campaign(50_000)],
                "11:00:00",
                4,
                6,
            ),
            ("closed", vec![campaign(0)], "12:00:00", 2, 1),
            ("closed, with a backlog", vec![campaign(2_500)], "12:00:01", 2, 3),
            ("two at once", vec![campaign(0), campaign(3_500)], "11:00:00", 8, 6),
            ("more than the ceilings", vec![campaign(9_000); 3], "11:00:00", 10, 8),
            (
                "sold out for less than five minutes",
                vec![quiet("10:55:01")],
                "11:00:00",
                4,
                2,
            ),
            (
                "sold out and quiet for five minutes",
                vec![quiet("10:55:00")],
                "11:00:00",
                2,
                1,
            ),
            (
                "unreadable: never fewer than there are",
                vec![unreadable()],
                "11:00:00",
                7,
                5,
            ),
            ("unreadable and closed", vec![unreadable()], "13:00:00", 7, 5),
            (
                "one unreadable, the other wants more",
                vec![unreadable(), campaign(9_000)],
                "11:00:00",
                8,
                8,
            ),
        ] {
            let pods = demand(&campaigns, at(now), CURRENT, INTAKE, WORKER);
            assert_eq!(pods, Pods { intake, worker }, "{what}");
        }
    }

    #[test]
    fn a_lower_demand_waits_and_a_higher_one_does_not() {
        let start = Instant::now();
        let mut damper = Damper::new(Duration::from_secs(60));
        for (second, wanted, expected) in [
            (0, 1, 1),
            (5, 6, 6),
            (10, 2, 6),
            (30, 4, 6),
            (64, 1, 6),
            (65, 1, 4),
            (89, 1, 4),
            (90, 1, 1),
            (91, 8, 8),
        ] {
            let damped = damper.damp(1, wanted, start + Duration::from_secs(second));
            assert_eq!(damped, expected, "at {second} s");
        }
    }

    #[test]
    fn who_begins_to_look_lets_the_pods_stay_for_a_while() {
        let start = Instant::now();
        let mut damper = Damper::new(Duration::from_secs(60));
        for (second, expected) in [(0, 4), (59, 4), (60, 1)] {
            let damped = damper.damp(4, 1, start + Duration::from_secs(second));
            assert_eq!(damped, expected, "at {second} s");
        }
    }

    proptest! {
        #[test]
        fn pods_stay_between_baseline_and_ceiling(
            pending in prop::collection::vec(prop::option::of(-5_i64..1_000_000), 0..6),
            minute in 0_i64..240,
            current in 2_i32..=10,
        ) {
            let campaigns: Vec<_> = pending.iter().map(|pending| match pending {
                Some(pending) => campaign(*pending),
                None => unreadable(),
            }).collect();
            let now = at("09:00:00") + SignedDuration::from_mins(minute);
            let current = Pods { intake: current, worker: current.min(8) };
            let pods = demand(&campaigns, now, current, INTAKE, WORKER);
            prop_assert!((2..=10).contains(&pods.intake) && (1..=8).contains(&pods.worker), "{pods:?}");
            if pending.iter().any(Option::is_none) {
                prop_assert!(pods.intake >= current.intake && pods.worker >= current.worker, "{pods:?}");
            }
        }

        #[test]
        fn a_larger_backlog_never_wants_fewer_workers(less in 0_i64..50_000, more in 0_i64..50_000) {
            let pods = |pending| demand(&[campaign(pending)], at("11:00:00"), CURRENT, INTAKE, WORKER).worker;
            prop_assert!(pods(less.min(more)) <= pods(less.max(more)));
        }
    }
}
