//! What one campaign has ready to be persisted, in the order of arrival.

use std::{collections::VecDeque, time::Duration};

use campaign::postgres::persist::LocatedRecord;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::assignment::Place;

/// A record that waits for its transaction.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The record.
    pub located: LocatedRecord,
    /// Where it was read, and in which life of its window.
    pub place: Place,
}

/// The ready records of one campaign. The channel needs no bound of its own: the windows bound it.
pub struct CampaignQueue {
    arrivals: UnboundedReceiver<Ready>,
    ready: VecDeque<Ready>,
}

impl CampaignQueue {
    /// Fed by `arrivals`.
    pub fn new(arrivals: UnboundedReceiver<Ready>) -> Self {
        Self {
            arrivals,
            ready: VecDeque::new(),
        }
    }

    /// Waits until a record is ready; false: none came within `idle`, or the worker stops. After false because of
    /// idleness nothing more is taken from the channel's senders, and what they had sent has been seen.
    pub async fn wait(&mut self, idle: Duration, stop: &CancellationToken) -> bool {
        if stop.is_cancelled() {
            return false;
        }
        if self.has_ready() {
            return true;
        }
        let arrival = tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            arrival = self.arrivals.recv() => arrival,
            () = tokio::time::sleep(idle) => {
                // From now on a send fails, so that the sender begins a new task; what is in the channel is ours.
                self.arrivals.close();
                self.arrivals.recv().await
            }
        };
        let came = arrival.is_some();
        self.ready.extend(arrival);
        came
    }

    /// Whether a record is ready now.
    pub fn has_ready(&mut self) -> bool {
        while let Ok(arrival) = self.arrivals.try_recv() {
            self.ready.push_back(arrival);
        }
        !self.ready.is_empty()
    }

    /// Drops what is no longer ours.
    pub fn retain(&mut self, keep: impl Fn(&Ready) -> bool) {
        self.ready.retain(keep);
    }

    /// The first records, as many as fit (at least one, if there is one).
    pub fn front(&mut self, max_records: usize, max_claims: usize) -> &[Ready] {
        let ready = self.ready.make_contiguous();
        let count = fitting(
            ready.iter().map(|ready| ready.located.record.claims.len()),
            max_records,
            max_claims,
        );
        &ready[..count]
    }

    /// The first records whose claims `permits` cover; may be none.
    pub fn covered(&mut self, max_records: usize, permits: usize) -> usize {
        covered(
            self.ready.iter().map(|ready| ready.located.record.claims.len()),
            max_records,
            permits,
        )
    }

    /// The first `count` are finished.
    pub fn drop_front(&mut self, count: usize) {
        self.ready.drain(..count.min(self.ready.len()));
    }
}

/// How many of the first records have at most `max_claims` together; the first one always fits.
fn fitting(claims: impl Iterator<Item = usize>, max_records: usize, max_claims: usize) -> usize {
    let mut sum = 0;
    claims
        .take(max_records)
        .enumerate()
        .take_while(|&(i, claims)| {
            sum += claims;
            i == 0 || sum <= max_claims
        })
        .count()
}

/// How many of the first records have at most `permits` claims together.
fn covered(claims: impl Iterator<Item = usize>, max_records: usize, permits: usize) -> usize {
    let mut sum = 0;
    claims
        .take(max_records)
        .take_while(|claims| {
            sum += claims;
            sum <= permits
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_what_fits_and_at_least_one_record() {
        for (claims, max_records, max_claims, want) in [
            (vec![], 10, 10, 0),
            (vec![3, 3, 3], 10, 10, 3),
            (vec![3, 3, 3], 10, 8, 2),
            (vec![3, 3, 3], 2, 10, 2),
            (vec![256, 1], 10, 100, 1),
        ] {
            assert_eq!(
                fitting(claims.iter().copied(), max_records, max_claims),
                want,
                "{claims:?}"
            );
        }
    }

    #[test]
    fn permits_cover_whole_records_only() {
        for (claims, permits, want) in [
            (vec![3, 3], 2, 0),
            (vec![3, 3], 3, 1),
            (vec![3, 3], 5, 1),
            (vec![3, 3], 6, 2),
            (vec![], 6, 0),
        ] {
            assert_eq!(
                covered(claims.iter().copied(), 10, permits),
                want,
                "{claims:?} {permits}"
            );
        }
    }
}
