//! Known ways to break the promise, each at the one line where its rule lives. They prove that the scenarios, the
//! torture and the model would notice.
//!
//! They are there only with the cargo feature `mutants`, which no release has: without it [`is`] is a constant `false`
//! and nothing of them is left in the program. With it, a process is the mutant that the environment variable
//! `COUPON_MUTANT` names, or the product if that is not set.
//!
//! `make mutants` runs the scenario that catches each; `docs/reliability.md` has the table.

use std::fmt;

pub(crate) mod lua;

macro_rules! mutants {
    ($($(#[doc = $rule:literal])+ $mutant:ident $name:literal)*) => {
        /// A rule that is broken. Each says which.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Mutant {
            $($(#[doc = $rule])+ $mutant,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$mutant),*];

            /// What `COUPON_MUTANT` calls it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$mutant => $name,)*
                }
            }
        }
    };
}

mutants! {
    /// Breaks: what is unknown is not released. A publish without an answer gives its slots back at once.
    UnknownReleased "unknown-released"
    /// Breaks: an acknowledgement later than `publishTimeout` after the reserve is unknown. It is a SUCCESS.
    LateSuccess "late-success"
    /// Breaks: `consumed` moves in the transaction that writes the rows. It moves in one of its own, before.
    OffsetsApart "offsets-apart"
    /// Breaks: whoever writes a batch first has decided. The primary key of `batch` stops nobody.
    BatchUnguarded "batch-unguarded"
    /// Breaks: first the old batches, then the end offsets. The sweeper reads the end offsets first.
    SweepEndsFirst "sweep-ends-first"
    /// Breaks: what is in Kafka up to the end offsets is left to the worker. The sweeper does not look there.
    SweepWithoutEnds "sweep-without-ends"
    /// Breaks: a batch is written as `abandoned` before its slots are free. They are freed without a row.
    AbandonUnwritten "abandon-unwritten"
    /// Breaks: a rebuild waits out `publishTimeout` and the margin before it reads the end offsets. It does not wait.
    RebuildUnwaited "rebuild-unwaited"
    /// Breaks: undecided claims up to the cut are pending in the new state. Only rows are.
    RebuildForgetsClaims "rebuild-forgets-claims"
    /// Breaks: a record of an older epoch past the cut is stale. No cut is stored.
    RebuildUncut "rebuild-uncut"
    /// Breaks: rows, offsets and decided batches are read as of one moment. The rows are read in a transaction of
    /// their own, before.
    RebuildTwoMoments "rebuild-two-moments"
    /// Breaks: an older rebuild writes nothing any more. Its commit does not look at the epoch.
    RebuildCommitsAnyEpoch "rebuild-commits-any-epoch"
    /// Breaks: a state that was built on another server counts as missing. Nobody looks at the run id.
    ServerUnchecked "server-unchecked"
    /// Breaks: an old reservation never frees a newer one. The user alone decides whose slot is freed.
    ReleaseByUser "release-by-user"
    /// Breaks: release first, then settle. The batch leaves `pending` while its slots are still taken.
    SettleFirst "settle-first"
    /// Breaks: a cancel is done only when Redis has confirmed the restock. It is tried once.
    RestockOnce "restock-once"
    /// Breaks: growing writes Postgres first. Redis grows first.
    RaiseRedisFirst "raise-redis-first"
    /// Breaks: absence is never read as zero. A reserve call takes a missing key for an untouched one.
    MissingIsZero "missing-is-zero"
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this process is that mutant. In a release: never.
#[cfg(not(feature = "mutants"))]
pub const fn is(_: Mutant) -> bool {
    false
}

/// Whether this process is that mutant.
///
/// # Panics
/// If `COUPON_MUTANT` names none: a typo must not pass for the product.
#[cfg(feature = "mutants")]
pub fn is(mutant: Mutant) -> bool {
    use std::sync::LazyLock;

    static CHOSEN: LazyLock<Option<Mutant>> = LazyLock::new(|| {
        let name = std::env::var("COUPON_MUTANT").ok()?;
        let chosen = Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name);
        let Some(chosen) = chosen else {
            panic!(
                "COUPON_MUTANT is {name:?}, which is none of {:?}",
                Mutant::ALL.iter().map(|m| m.name()).collect::<Vec<_>>()
            );
        };
        tracing::error!(mutant = chosen.name(), "this process breaks the promise on purpose");
        Some(chosen)
    });
    *CHOSEN == Some(mutant)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: HashSet<_> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        assert_eq!(names.len(), Mutant::ALL.len());
    }

    #[cfg(not(feature = "mutants"))]
    #[test]
    fn the_product_is_none_of_them() {
        const NONE: bool = is(Mutant::UnknownReleased);
        assert!(!NONE && Mutant::ALL.iter().all(|&mutant| !is(mutant)));
    }
}
