//! Pauses between tries that have no limit: doubling, jittered, bounded.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// How often in a row something failed.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause: between half of and all of 50 ms, 100 ms, … 5 s.
    pub fn next_pause(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Pauses; false: the worker stops, do not try again.
    pub async fn pause(&mut self, stop: &CancellationToken) -> bool {
        pause(self.next_pause(), stop).await
    }
}

/// Pauses for `pause`; false: the worker stops.
pub async fn pause(pause: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        () = stop.cancelled() => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.next_pause()).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2);
        assert!(pauses[3] >= FIRST * 4);
        assert!(pauses.iter().all(|&pause| pause <= LONGEST));
        backoff.reset();
        assert!(backoff.next_pause() <= FIRST);
    }
}
