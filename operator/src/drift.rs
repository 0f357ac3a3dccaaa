//! When a broken equation counts. Redis and Postgres are read one after the other, so that one odd look proves nothing:
//! the same drift three times, ten seconds apart, does.

use std::time::{Duration, Instant};

use campaign::conservation::Drift;

/// Looks that must agree.
pub const LOOKS: u32 = 3;
/// Time between two looks that count.
pub const APART: Duration = Duration::from_secs(10);

/// What the looks so far say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The equation holds.
    Balanced,
    /// It did not hold at the last look; look again.
    Suspect,
    /// It did not hold in the same way, again and again.
    Broken(Vec<Drift>),
}

/// The looks at one campaign.
#[derive(Clone, Debug, Default)]
pub struct DriftWatch {
    last: Option<Look>,
}

#[derive(Clone, Debug)]
struct Look {
    drifts: Vec<Drift>,
    counted_at: Instant,
    times: u32,
}

impl DriftWatch {
    /// One more look. Looks closer together than [`APART`] count once; another drift begins anew.
    pub fn look(&mut self, drifts: &[Drift], now: Instant) -> Verdict {
        if drifts.is_empty() {
            self.last = None;
            return Verdict::Balanced;
        }
        let times = match &mut self.last {
            Some(look) if look.drifts == drifts => {
                if now.duration_since(look.counted_at) >= APART {
                    look.counted_at = now;
                    look.times += 1;
                }
                look.times
            }
            last => {
                *last = Some(Look {
                    drifts: drifts.to_vec(),
                    counted_at: now,
                    times: 1,
                });
                1
            }
        };
        if times >= LOOKS {
            Verdict::Broken(drifts.to_vec())
        } else {
            Verdict::Suspect
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [Drift; 1] = [Drift::Leaked { by: 1 }];
    const TWO: [Drift; 1] = [Drift::Leaked { by: 2 }];

    #[test]
    fn only_the_same_drift_three_times_ten_seconds_apart_counts() {
        let start = Instant::now();
        let (one, two, none) = (&ONE[..], &TWO[..], &[][..]);
        for (what, looks, broken) in [
            ("three times", vec![(0, one), (10, one), (20, one)], true),
            ("twice", vec![(0, one), (10, one)], false),
            (
                "often, but close together",
                vec![(0, one), (3, one), (6, one), (9, one)],
                false,
            ),
            (
                "close together, then apart",
                vec![(0, one), (5, one), (10, one), (15, one), (20, one)],
                true,
            ),
            (
                "balanced in between",
                vec![(0, one), (10, one), (20, none), (30, one)],
                false,
            ),
            (
                "another one in between",
                vec![(0, one), (10, one), (20, two), (30, one)],
                false,
            ),
        ] {
            let mut watch = DriftWatch::default();
            let verdicts: Vec<Verdict> = looks
                .iter()
                .map(|(at, drifts)| watch.look(drifts, start + Duration::from_secs(*at)))
                .collect();
            assert_eq!(
                verdicts.last() == Some(&Verdict::Broken(ONE.to_vec())),
                broken,
                "{what}: {verdicts:?}"
            );
        }
    }

    #[test]
    fn a_broken_equation_is_well_again_at_once() {
        let start = Instant::now();
        let mut watch = DriftWatch::default();
        for look in 0..3 {
            watch.look(&ONE, start + APART * look);
        }
        assert_eq!(watch.look(&[], start + APART * 3), Verdict::Balanced);
        assert_eq!(watch.look(&ONE, start + APART * 4), Verdict::Suspect);
    }
}
