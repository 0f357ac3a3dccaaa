//! Shuts the door while Kafka does not take records, so that an outage does not eat the stock. One claim a second goes
//! through as a probe; a success opens.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// From the start of one probe to the next.
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// Whether a claim may reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// As always.
    Open,
    /// As the one claim that tries whether Kafka is back. Its end has to be told with [`Gate::probe_ended`] or
    /// [`Gate::probe_told_nothing`].
    Probe,
    /// Not now.
    Shut,
}

/// The gate of one process.
#[derive(Debug)]
pub struct Gate {
    origin: Instant,
    shut: AtomicBool,
    /// When the next probe may go, in ms since `origin`.
    next_probe: AtomicU64,
    /// After this long a probe that nobody ended counts as lost.
    probe_limit: Duration,
}

impl Gate {
    /// Open. `probe_limit` is longer than any probe takes.
    pub fn new(probe_limit: Duration) -> Self {
        Self {
            origin: Instant::now(),
            shut: AtomicBool::new(false),
            next_probe: AtomicU64::new(0),
            probe_limit,
        }
    }

    /// Whether claims are refused. `brokers_up`: the client has not lost every broker.
    pub fn is_shut(&self, brokers_up: bool) -> bool {
        !brokers_up || self.shut.load(Ordering::Acquire)
    }

    /// Judges a claim that came at `now`.
    pub fn admit(&self, brokers_up: bool, now: impl FnOnce() -> Instant) -> Admission {
        if !self.is_shut(brokers_up) {
            return Admission::Open;
        }
        let now = now();
        let due = self.next_probe.load(Ordering::Acquire);
        if self.ms(now) < due {
            return Admission::Shut;
        }
        // While a probe is on its way no other starts: a second one would only eat another slot.
        let ours = self.next_probe.compare_exchange(
            due,
            self.ms(now + self.probe_limit),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if ours.is_ok() {
            Admission::Probe
        } else {
            Admission::Shut
        }
    }

    /// A probe that began at `began` has ended with a record that was tried: the next one may follow a period after it.
    pub fn probe_ended(&self, began: Instant) {
        self.next_probe.store(self.ms(began + PROBE_PERIOD), Ordering::Release);
    }

    /// A probe has ended without a record (sold out, a duplicate, refused): it took no slot and told nothing. The next
    /// claim tries, or those of a campaign that is sold out would use up the tries of all others.
    pub fn probe_told_nothing(&self) {
        self.next_probe.store(0, Ordering::Release);
    }

    /// A record was acknowledged. True if that opened the gate.
    pub fn open(&self) -> bool {
        self.shut.load(Ordering::Acquire) && self.shut.swap(false, Ordering::AcqRel)
    }

    /// A publish failed at `now`. True if that shut the gate.
    pub fn shut(&self, now: Instant) -> bool {
        let shut = !self.shut.swap(true, Ordering::AcqRel);
        if shut {
            self.next_probe.store(self.ms(now + PROBE_PERIOD), Ordering::Release);
        }
        shut
    }

    fn ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.origin)
            .as_millis()
            .try_into()
            .unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(15);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn open_until_a_publish_fails_and_open_again_after_a_success() {
        let gate = Gate::new(LIMIT);
        let start = gate.origin;
        assert_eq!(gate.admit(true, || start), Admission::Open);
        assert!(gate.shut(start));
        assert!(!gate.shut(start), "shut already");
        assert_eq!(gate.admit(true, || start + SECOND / 2), Admission::Shut);
        assert!(gate.open());
        assert!(!gate.open(), "open already");
        assert_eq!(gate.admit(true, || start + SECOND / 2), Admission::Open);
    }

    #[test]
    fn one_probe_a_second_and_one_at_a_time() {
        let gate = Gate::new(LIMIT);
        let start = gate.origin;
        gate.shut(start);
        let first = start + SECOND;
        assert_eq!(gate.admit(true, || first), Admission::Probe);
        assert_eq!(gate.admit(true, || first), Admission::Shut);
        assert_eq!(
            gate.admit(true, || first + SECOND * 5),
            Admission::Shut,
            "still on its way"
        );
        gate.probe_ended(first);
        assert_eq!(gate.admit(true, || first + SECOND / 2), Admission::Shut);
        assert_eq!(gate.admit(true, || first + SECOND), Admission::Probe);
    }

    #[test]
    fn a_probe_without_a_record_leaves_its_turn_to_the_next_claim() {
        let gate = Gate::new(LIMIT);
        let first = gate.origin + SECOND;
        gate.shut(gate.origin);
        assert_eq!(gate.admit(true, || first), Admission::Probe);
        gate.probe_told_nothing();
        assert_eq!(gate.admit(true, || first), Admission::Probe);
        assert_eq!(gate.admit(true, || first), Admission::Shut);
    }

    #[test]
    fn a_lost_probe_does_not_shut_the_gate_for_ever() {
        let gate = Gate::new(LIMIT);
        let first = gate.origin + SECOND;
        gate.shut(gate.origin);
        assert_eq!(gate.admit(true, || first), Admission::Probe);
        assert_eq!(gate.admit(true, || first + LIMIT), Admission::Probe);
    }

    #[test]
    fn shut_at_once_while_every_broker_is_lost() {
        let gate = Gate::new(LIMIT);
        let start = gate.origin;
        assert_eq!(gate.admit(false, || start), Admission::Probe);
        assert_eq!(gate.admit(false, || start), Admission::Shut);
        assert_eq!(
            gate.admit(true, || start),
            Admission::Open,
            "brokers are back, no publish failed"
        );
    }

    #[test]
    fn later_failures_do_not_put_off_the_probe() {
        let gate = Gate::new(LIMIT);
        let start = gate.origin;
        gate.shut(start);
        gate.shut(start + SECOND / 2);
        assert_eq!(gate.admit(true, || start + SECOND), Admission::Probe);
    }
}
