//! The equation: no slot comes from nowhere, none goes nowhere.
//!
//! Redis counts slots that are taken; Postgres counts slots that are issued or parked. A claim on its way is taken and
//! not yet issued; a cancel on its way is no longer issued and still taken.

use std::fmt;

/// What Redis and Postgres say about one campaign. `taken` and `pending` come from one script call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Slots in all, as Redis has it.
    pub quantity: i64,
    /// Slots taken.
    pub taken: i64,
    /// Of these, claims without an outcome in Redis yet.
    pub pending: i64,
    /// Coupons that occupy a slot.
    pub issued: i64,
    /// Dead letters that occupy a slot.
    pub parked: i64,
    /// Cancels whose slot Redis has not got back yet.
    pub restocks: i64,
}

/// How a tally breaks the equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// More rows than slots.
    Oversold {
        /// How many too many.
        by: i64,
    },
    /// Redis counts slots as taken that nobody has: they can never be sold.
    Leaked {
        /// How many.
        by: i64,
    },
    /// Postgres has rows for which Redis counts no slot: they could be sold twice.
    Unaccounted {
        /// How many.
        by: i64,
    },
    /// Claims are pending although it is quiet.
    Unsettled {
        /// How many.
        claims: i64,
    },
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oversold { by } => write!(f, "oversold by {by}: more coupons than the quantity"),
            Self::Leaked { by } => write!(f, "leaked {by}: slots are taken that nobody holds"),
            Self::Unaccounted { by } => {
                write!(f, "unaccounted {by}: coupons without a slot, which could be sold twice")
            }
            Self::Unsettled { claims } => write!(f, "unsettled {claims}: claims are pending although it is quiet"),
        }
    }
}

impl Tally {
    /// Slots that are free.
    pub fn available(&self) -> i64 {
        (self.quantity - self.taken).max(0)
    }

    /// While it runs: `taken - pending - restocks ≤ issued + parked ≤ taken`. The two sides are read at different moments,
    /// so that one drift alone proves nothing: the same one, again and again, does.
    pub fn check_running(&self) -> Vec<Drift> {
        let held = self.issued + self.parked;
        let mut drifts = self.oversold();
        if held > self.taken {
            drifts.push(Drift::Unaccounted { by: held - self.taken });
        }
        let settled = self.taken - self.pending - self.restocks;
        if settled > held {
            drifts.push(Drift::Leaked { by: settled - held });
        }
        drifts
    }

    /// When it is quiet: `quantity = available + issued + parked`, and nothing is pending.
    pub fn check_quiet(&self) -> Vec<Drift> {
        let held = self.issued + self.parked;
        let mut drifts = self.oversold();
        if self.pending != 0 {
            drifts.push(Drift::Unsettled { claims: self.pending });
        }
        match self.taken - held {
            0 => {}
            by if by > 0 => drifts.push(Drift::Leaked { by }),
            by => drifts.push(Drift::Unaccounted { by: -by }),
        }
        drifts
    }

    fn oversold(&self) -> Vec<Drift> {
        let by = self.issued + self.parked - self.quantity;
        if by > 0 {
            vec![Drift::Oversold { by }]
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Tally = Tally {
        quantity: 10,
        taken: 7,
        pending: 0,
        issued: 6,
        parked: 1,
        restocks: 0,
    };

    #[test]
    fn a_quiet_campaign_balances() {
        assert_eq!(EVEN.check_quiet(), []);
        assert_eq!(EVEN.available(), 3);
        for (tally, drift) in [
            (Tally { taken: 8, ..EVEN }, Drift::Leaked { by: 1 }),
            (Tally { taken: 6, ..EVEN }, Drift::Unaccounted { by: 1 }),
            (Tally { pending: 2, ..EVEN }, Drift::Unsettled { claims: 2 }),
            (Tally { quantity: 6, ..EVEN }, Drift::Oversold { by: 1 }),
        ] {
            assert_eq!(tally.check_quiet(), [drift]);
        }
    }

    #[test]
    fn a_running_campaign_has_claims_and_cancels_on_their_way() {
        let running = Tally {
            taken: 10,
            pending: 2,
            restocks: 1,
            ..EVEN
        };
        assert_eq!(running.check_running(), []);
        assert_eq!(
            Tally { pending: 1, ..running }.check_running(),
            [Drift::Leaked { by: 1 }]
        );
        assert_eq!(
            Tally { issued: 10, ..EVEN }.check_running()[0],
            Drift::Oversold { by: 1 }
        );
        assert_eq!(
            Tally { taken: 6, ..EVEN }.check_running(),
            [Drift::Unaccounted { by: 1 }]
        );
    }
}
