//! Finds a member that does not come into its group although its brokers answer others: its partitions would wait until the
//! process is started again. Pure: no I/O, no clock.

use campaign::kafka::consumer::Membership;

use crate::silence::{LOOKS, more_looks};

/// The looks so far at one member.
#[derive(Debug)]
pub struct Absence {
    /// Looks in a row that found it out of its group.
    looks: u32,
    /// As many make it absent, and twice as many after each time: another client need not help.
    takes: u32,
}

impl Default for Absence {
    fn default() -> Self {
        Self { looks: 0, takes: LOOKS }
    }
}

impl Absence {
    /// The brokers did not answer: where the member is says nothing, and it has time to come back from that.
    pub fn brokers_are_away(&mut self) {
        self.looks = 0;
    }

    /// One more look, while the brokers answer. Answers whether the member needs another client.
    pub fn look(&mut self, membership: Membership) -> bool {
        match membership {
            Membership::In => *self = Self::default(),
            Membership::Waiting => self.looks = 0,
            // It says so itself: nothing is gained by waiting. The next client has its own looks.
            Membership::Stranded => {
                self.looks = 0;
                return true;
            }
            Membership::Out => self.looks += 1,
        }
        let absent = self.looks >= self.takes;
        if absent {
            self.looks = 0;
            self.takes = more_looks(self.takes);
        }
        absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silence::MOST_LOOKS;

    fn found_at(absence: &mut Absence, membership: Membership, looks: u32) -> Vec<u32> {
        (1..=looks).filter(|_| absence.look(membership)).collect()
    }

    #[test]
    fn a_member_that_stays_out_is_found_ever_more_rarely_until_it_is_in() {
        let mut absence = Absence::default();
        assert_eq!(found_at(&mut absence, Membership::Out, 21), [3, 9, 21]);
        assert_eq!(found_at(&mut absence, Membership::In, 5), [0; 0]);
        assert_eq!(found_at(&mut absence, Membership::Out, 3), [3]);
        let last = found_at(&mut absence, Membership::Out, 10 * MOST_LOOKS);
        assert_eq!(last[last.len() - 1] - last[last.len() - 2], MOST_LOOKS, "bounded");
    }

    #[test]
    fn a_rebalance_is_no_absence() {
        let mut absence = Absence::default();
        for ends_with in [Membership::In, Membership::Waiting] {
            for membership in [Membership::Out, Membership::Out, ends_with].repeat(4) {
                assert!(!absence.look(membership));
            }
        }
    }

    #[test]
    fn while_the_brokers_are_away_nobody_is_absent() {
        let mut absence = Absence::default();
        assert_eq!(found_at(&mut absence, Membership::Out, 2), [0; 0]);
        absence.brokers_are_away();
        assert_eq!(found_at(&mut absence, Membership::Out, 3), [3]);
    }

    #[test]
    fn a_stranded_member_is_found_at_once_and_the_next_one_has_its_own_looks() {
        let mut absence = Absence::default();
        assert_eq!(found_at(&mut absence, Membership::Out, 2), [0; 0]);
        assert_eq!(found_at(&mut absence, Membership::Stranded, 2), [1, 2]);
        assert_eq!(found_at(&mut absence, Membership::Out, 3), [3]);
    }
}
