//! What the demo measured, and whether the promise held.

use std::fmt;

use campaign::conservation::Tally;

/// The numbers of the last line. Every one of them was counted by the servers or by the users, none is assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Coupons to give.
    pub quantity: i64,
    /// Both sides of the equation, from Redis and from the rows; `None` where Redis has no state.
    pub tally: Option<Tally>,
    /// Users who were told SUCCESS.
    pub success: u64,
    /// Coupons that are not their user's first.
    pub duplicate_rows: u64,
    /// Stored claims that were rejected.
    pub revoked: u64,
    /// Users who came.
    pub users: u64,
    /// Users whose claim nobody decided.
    pub undecided: u64,
    /// Whether the audit found nothing.
    pub clean: bool,
}

impl Summary {
    /// Why the promise does not hold; empty: it does.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut check = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        match &self.tally {
            None => check(false, "Redis has no state to be compared".to_owned()),
            Some(tally) => {
                for drift in tally.check_quiet() {
                    check(false, drift.to_string());
                }
                check(
                    tally.quantity == tally.available() + tally.issued + tally.parked,
                    "quantity is not available + issued + parked".to_owned(),
                );
                check(
                    tally.quantity == self.quantity,
                    format!("Redis sells {} coupons, not {}", tally.quantity, self.quantity),
                );
                let due = self.quantity.min(i64::try_from(self.users).unwrap_or(i64::MAX));
                check(
                    tally.issued == due,
                    format!("{due} coupons should have been issued, {} were", tally.issued),
                );
                check(
                    i64::try_from(self.success) == Ok(tally.issued),
                    format!("{} users were told SUCCESS for {} coupons", self.success, tally.issued),
                );
            }
        }
        check(
            self.duplicate_rows == 0,
            format!("{} duplicate rows", self.duplicate_rows),
        );
        check(
            self.revoked == 0,
            format!("{} stored claims were revoked", self.revoked),
        );
        check(self.undecided == 0, format!("{} users have no outcome", self.undecided));
        check(self.clean, "the audit found something".to_owned());
        broken
    }
}

/// The last line of the demo.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (available, pending, issued) = match &self.tally {
            Some(tally) => (
                tally.available().to_string(),
                tally.pending.to_string(),
                tally.issued.to_string(),
            ),
            None => ("unknown".to_owned(), "unknown".to_owned(), "unknown".to_owned()),
        };
        let word = if self.broken().is_empty() {
            "conserved"
        } else {
            "BROKEN"
        };
        write!(
            f,
            "{word} quantity={} available={available} pending={pending} issued={issued} success={} duplicate_rows={} revoked={}",
            self.quantity, self.success, self.duplicate_rows, self.revoked
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLD: Tally = Tally {
        quantity: 1000,
        taken: 1000,
        pending: 0,
        issued: 1000,
        parked: 0,
        restocks: 0,
    };
    const GOOD: Summary = Summary {
        quantity: 1000,
        tally: Some(SOLD),
        success: 1000,
        duplicate_rows: 0,
        revoked: 0,
        users: 20_000,
        undecided: 0,
        clean: true,
    };

    #[test]
    fn a_sold_out_campaign_is_conserved() {
        assert_eq!(GOOD.broken(), [""; 0]);
        assert_eq!(
            GOOD.to_string(),
            "conserved quantity=1000 available=0 pending=0 issued=1000 success=1000 duplicate_rows=0 revoked=0"
        );
        let half = Summary {
            tally: Some(Tally {
                taken: 500,
                issued: 500,
                ..SOLD
            }),
            success: 500,
            users: 500,
            ..GOOD
        };
        assert_eq!(half.broken(), [""; 0]);
    }

    #[test]
    fn whatever_does_not_fit_breaks_it() {
        let with = |tally| Summary {
            tally: Some(tally),
            ..GOOD
        };
        for bad in [
            Summary { tally: None, ..GOOD },
            with(Tally { issued: 999, ..SOLD }),
            with(Tally { pending: 1, ..SOLD }),
            with(Tally { taken: 999, ..SOLD }),
            with(Tally { quantity: 999, ..SOLD }),
            with(Tally {
                taken: 900,
                issued: 900,
                ..SOLD
            }),
            Summary { success: 999, ..GOOD },
            Summary { success: 1001, ..GOOD },
            Summary {
                duplicate_rows: 1,
                ..GOOD
            },
            Summary { revoked: 1, ..GOOD },
            Summary { undecided: 1, ..GOOD },
            Summary { clean: false, ..GOOD },
        ] {
            assert!(!bad.broken().is_empty(), "{bad:?}");
            assert!(bad.to_string().starts_with("BROKEN "), "{bad}");
        }
    }
}
