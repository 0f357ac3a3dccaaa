//! When to look at a campaign again, if nothing happens: at the next moment that matters to it.

use std::time::Duration;

use campaign::{align::is_over, manifest::CouponCampaignSpec};
use jiff::{SignedDuration, Timestamp};

use crate::{
    demand::{QUIET, starts_warming},
    reconcile::load::Loaded,
};

/// While claims come or are on their way: the equation is looked at this often.
const ROUND: Duration = Duration::from_secs(10);
/// Somebody else is at it, or claims are drained.
const SOON: Duration = Duration::from_secs(2);
/// A state that was lost before the opening is found this soon.
const WAITING: Duration = Duration::from_secs(60);
/// Nothing happens after the close.
const OVER: Duration = Duration::from_secs(600);
/// A moment is looked at just after it: a timer that is early would look twice.
const AFTER: Duration = Duration::from_millis(50);

/// The time until the next look.
pub fn next_look(
    spec: Option<&CouponCampaignSpec>,
    loaded: &Loaded,
    quiet_since: Option<Timestamp>,
    unfinished: bool,
) -> Duration {
    if unfinished {
        return SOON;
    }
    if loaded.unreadable().is_some() {
        return ROUND;
    }
    let now = loaded.now;
    let pending = loaded.serving().is_some_and(|(_, numbers)| numbers.pending > 0);
    let over = matches!(&loaded.row, Ok(Some(row)) if is_over(row, now));
    let waiting = spec
        .and_then(|spec| spec.opens_at)
        .is_some_and(|opens_at| opens_at > now);
    let latest = match (pending, over, waiting) {
        (true, ..) => ROUND,
        (false, true, _) => OVER,
        (false, false, true) => WAITING,
        (false, false, false) => ROUND,
    };
    let moments = spec.into_iter().flat_map(|spec| {
        [
            spec.opens_at.map(|at| starts_warming(at, spec.intake.warmup.0)),
            spec.opens_at,
            spec.closes_at,
            quiet_since.and_then(|since| since.checked_add(QUIET).ok()),
        ]
    });
    moments
        .flatten()
        .map(|moment| moment.duration_since(now))
        .filter(|left| *left > SignedDuration::ZERO)
        .filter_map(|left| Duration::try_from(left).ok())
        .map(|left| left + AFTER)
        .fold(latest, Duration::min)
}

#[cfg(test)]
mod tests {
    use campaign::redis::state::StateAnswer;

    use super::*;
    use crate::samples::{at, loaded, redis_out, wanted, wanted_with, with_numbers, with_state};

    #[test]
    fn the_next_look_is_at_the_next_moment_that_matters() {
        let wanted = wanted();
        let long = wanted_with("quantity: 1, opensAt: 2026-11-27T10:00:00Z, intake: {warmup: 30s}");
        let at_time = |time| Loaded {
            now: at(time),
            ..loaded(&wanted)
        };
        let pending = |time| Loaded {
            now: at(time),
            ..with_numbers(&wanted, |numbers| numbers.pending = 1)
        };
        for (what, wanted, loaded, quiet_since, unfinished, ms) in [
            (
                "long before: to find a state that is lost",
                &wanted,
                at_time("08:00:00"),
                None,
                false,
                60_000,
            ),
            (
                "shortly before the warm-up",
                &wanted,
                at_time("09:54:48"),
                None,
                false,
                12_050,
            ),
            (
                "shortly before the opening",
                &wanted,
                at_time("09:59:58"),
                None,
                false,
                2_050,
            ),
            ("a shorter warm-up", &long, at_time("09:59:10"), None, false, 20_050),
            ("open", &wanted, at_time("11:00:00"), None, false, 10_000),
            (
                "shortly before the close",
                &wanted,
                at_time("11:59:59"),
                None,
                false,
                1_050,
            ),
            ("over", &wanted, at_time("12:00:00"), None, false, 600_000),
            (
                "over, with claims on their way",
                &wanted,
                pending("12:00:00"),
                None,
                false,
                10_000,
            ),
            (
                "nearly quiet for five minutes",
                &wanted,
                at_time("11:00:00"),
                Some(at("10:55:04")),
                false,
                4_050,
            ),
            ("unfinished", &wanted, at_time("11:00:00"), None, true, 2_000),
            ("unreadable", &wanted, redis_out(&wanted), None, false, 10_000),
            (
                "expired",
                &wanted,
                Loaded {
                    now: at("12:30:00"),
                    ..with_state(&wanted, StateAnswer::NotInitialized)
                },
                None,
                false,
                600_000,
            ),
        ] {
            let next = next_look(Some(&wanted.spec), &loaded, quiet_since, unfinished);
            assert_eq!(next.as_millis(), ms, "{what}");
        }
    }
}
