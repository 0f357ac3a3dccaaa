//! Latencies: collected one by one, told as percentiles.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Latencies in microseconds, as they came.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<u32>);

/// What they come to, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// One in a hundred takes longer.
    pub p99: f64,
    /// The longest.
    pub most: f64,
}

impl Samples {
    /// Adds one.
    pub fn add(&mut self, latency: Duration) {
        self.0.push(latency.as_micros().try_into().unwrap_or(u32::MAX));
    }

    /// Adds those of another part of the same run.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Sorts them and reads the percentiles.
    pub fn summary(mut self) -> Latencies {
        self.0.sort_unstable();
        let at = |share: f64| {
            let index = ((self.0.len() as f64 * share).ceil() as usize).saturating_sub(1);
            self.0.get(index).map_or(0.0, |&micros| f64::from(micros) / 1000.0)
        };
        Latencies {
            count: self.0.len() as u64,
            p50: at(0.5),
            p99: at(0.99),
            most: at(1.0),
        }
    }
}

/// The middle one; of two middle ones the lower.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get(sorted.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_occurred() {
        let mut samples = Samples::default();
        for ms in (1..=100).rev() {
            samples.add(Duration::from_millis(ms));
        }
        let summary = samples.summary();
        assert_eq!((summary.p50, summary.p99, summary.most), (50.0, 99.0, 100.0));
        assert_eq!(Samples::default().summary(), Latencies::default());
    }

    #[test]
    fn the_median_ignores_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
