//! What a load came to: counts, successes and latencies.

use std::{collections::BTreeMap, time::Duration};

use campaign::identity::UserId;

use super::answer::Outcome;
use crate::audit::Successes;

/// Counts of one connection, or of all of them.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Answers to claims, by name; a user may have caused several.
    pub answers: BTreeMap<String, u64>,
    /// What users came to in the end, by name.
    pub outcomes: BTreeMap<String, u64>,
    /// Who was told SUCCESS.
    pub successes: Successes,
    /// Users who clicked twice.
    pub double_clicks: u64,
    /// Users who hung up.
    pub hang_ups: u64,
    /// Claims sent.
    pub claims: u64,
    /// Claims without an answer: a broken connection or a time-out.
    pub unanswered: u64,
    /// Users without an outcome when the time was over.
    pub gave_up: u64,
    /// From sending a claim (or from when it was due) to its answer.
    pub latencies: Latencies,
}

impl Tally {
    /// Counts an answer.
    pub fn answer(&mut self, name: String, latency: Duration) {
        *self.answers.entry(name).or_default() += 1;
        self.latencies.record(latency);
    }

    /// Counts what a user came to; `None`: the time was over.
    pub fn outcome(&mut self, user: &UserId, outcome: Option<Outcome>) {
        let name = match outcome {
            Some(Outcome::Success(request)) => {
                self.successes.insert(request, user.clone());
                "SUCCESS".to_owned()
            }
            Some(Outcome::Duplicate(_)) => "DUPLICATE".to_owned(),
            Some(Outcome::Refused(name)) => name,
            None => {
                self.gave_up += 1;
                return;
            }
        };
        *self.outcomes.entry(name).or_default() += 1;
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: Self) {
        for (name, count) in other.answers {
            *self.answers.entry(name).or_default() += count;
        }
        for (name, count) in other.outcomes {
            *self.outcomes.entry(name).or_default() += count;
        }
        self.successes.extend(other.successes);
        self.double_clicks += other.double_clicks;
        self.hang_ups += other.hang_ups;
        self.claims += other.claims;
        self.unanswered += other.unanswered;
        self.gave_up += other.gave_up;
        self.latencies.merge(&other.latencies);
    }
}

/// What two clicks of one user came to together: a success of either, else the one that names the other's request.
pub fn either(first: Option<Outcome>, second: Option<Outcome>) -> Option<Outcome> {
    let rank = |outcome: &Option<Outcome>| match outcome {
        Some(Outcome::Success(_)) => 3,
        Some(Outcome::Duplicate(_)) => 2,
        Some(Outcome::Refused(_)) => 1,
        None => 0,
    };
    if rank(&second) > rank(&first) { second } else { first }
}

/// Steps within a power of two: a percentile is at most 1/64 too high.
const STEPS: u64 = 64;

/// A histogram of latencies: fixed in size, exact below 128 µs, within 1.6 % above.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
}

impl Latencies {
    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        let bucket = bucket(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
    }

    /// The latency that a share of the answers (0 to 1) did not exceed; `None` where there are none.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Some(Duration::from_micros(upper_end(bucket as u64)));
            }
        }
        None
    }
}

fn bucket(micros: u64) -> usize {
    if micros < STEPS {
        return micros as usize;
    }
    // An hour and more is one bucket.
    let micros = micros.min(1 << 32);
    let shift = u64::from(micros.ilog2()) - 6;
    (shift * STEPS + (micros >> shift)) as usize
}

fn upper_end(bucket: u64) -> u64 {
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((bucket - shift * STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use campaign::identity::RequestId;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_those_of_the_answers() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(0.5), None);
        (1..=100).for_each(|micros| latencies.record(Duration::from_micros(micros)));
        for (share, micros) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(
                latencies.percentile(share),
                Some(Duration::from_micros(micros)),
                "{share}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_latency_is_kept_within_its_precision(micros in 0_u64..(1 << 32)) {
            let kept = upper_end(bucket(micros) as u64);
            prop_assert!(kept >= micros && kept - micros <= micros / STEPS, "{micros} {kept}");
        }
    }

    #[test]
    fn two_clicks_have_the_better_outcome_of_both() {
        let success = Some(Outcome::Success(RequestId::fresh()));
        let duplicate = Some(Outcome::Duplicate(RequestId::fresh()));
        let refused = Some(Outcome::Refused("SOLD_OUT".to_owned()));
        for (first, second, both) in [
            (&success, &duplicate, &success),
            (&duplicate, &success, &success),
            (&refused, &duplicate, &duplicate),
            (&None, &refused, &refused),
            (&None, &None, &None),
        ] {
            assert_eq!(either(first.clone(), second.clone()), *both);
        }
    }

    #[test]
    fn a_merged_tally_counts_everything_once() {
        let user: UserId = "u".parse().expect("valid");
        let mut one = Tally::default();
        one.answer("SUCCESS".to_owned(), Duration::from_millis(1));
        one.outcome(&user, Some(Outcome::Success(RequestId::fresh())));
        let mut other = Tally::default();
        other.answer("SUCCESS".to_owned(), Duration::from_millis(3));
        other.outcome(&user, None);
        one.merge(other);
        assert_eq!(one.answers, BTreeMap::from([("SUCCESS".to_owned(), 2)]));
        assert_eq!((one.successes.len(), one.gave_up), (1, 1));
        assert!(one.latencies.percentile(1.0) >= Some(Duration::from_millis(3)));
    }
}
