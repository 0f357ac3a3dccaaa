//! Known ways to break the promise, each at the one line where its rule lives. They prove that the scenarios, the
//! torture and the model would notice.
//!
//! They are there only with the cargo feature `mutants`, which no release has: without it [`is`] is a constant `false`
//! and nothing of them is left in the program. With it, a process is the mutant that the environment variable
//! `COUPON_MUTANT` names, or the product if that is not set.
//!
//! `make mutants` runs the scenario that catches each; `docs/mutants.md` has the table.

use std::fmt;

pub(crate) mod lua;

macro_rules! mutants {
    ($($(#[doc = $rule:literal])+ $mutant:ident $name:literal)*) => {
        /// A rule that is broken. Each says which. The model has the same ones.
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
    ReleaseOnUnknownPublish "release_on_unknown_publish"
    /// Breaks: an acknowledgement later than `publishTimeout` after the reserve is unknown. It is a SUCCESS.
    SuccessOnLateAcknowledgement "success_on_late_acknowledgement"
    /// Breaks: `consumed` moves in the transaction that writes the rows. It moves in one of its own, before.
    OffsetsNotInTransaction "offsets_not_in_transaction"
    /// Breaks: whoever writes a batch first has decided. The primary key of `batch` stops nobody.
    NoBatchKey "no_batch_key"
    /// Breaks: first the old batches, then the end offsets. The sweeper reads the end offsets first.
    EndOffsetsBeforeExpired "end_offsets_before_expired"
    /// Breaks: what is in Kafka up to the end offsets is left to the worker. The sweeper does not look there.
    NoEndOffsets "no_end_offsets"
    /// Breaks: a batch is written as `abandoned` before its slots are free. They are freed without a row.
    NoAbandonedRow "no_abandoned_row"
    /// Breaks: a rebuild waits out `publishTimeout` and the margin before it reads the end offsets. It does not wait.
    RebuildWithoutWait "rebuild_without_wait"
    /// Breaks: undecided claims up to the cut are pending in the new state. Only rows are.
    RebuildWithoutKafka "rebuild_without_kafka"
    /// Breaks: a record of an older epoch past the cut is stale. No cut is stored.
    RebuildWithoutCut "rebuild_without_cut"
    /// Breaks: rows, offsets and decided batches are read as of one moment. The rows are read in a transaction of
    /// their own, before.
    RebuildWithTwoSnapshots "rebuild_with_two_snapshots"
    /// Breaks: an older rebuild writes nothing any more. Its commit does not look at the epoch.
    NoEpochCheckInCommit "no_epoch_check_in_commit"
    /// Breaks: a state that was built on another server counts as missing. Nobody looks at the run id.
    NoRunIdCheck "no_run_id_check"
    /// Breaks: an old reservation never frees a newer one. The user alone decides whose slot is freed.
    ReleaseByUserAlone "release_by_user_alone"
    /// Breaks: release first, then settle. The batch leaves `pending` while its slots are still taken.
    SettleBeforeRelease "settle_before_release"
    /// Breaks: a cancel is done only when Redis has confirmed the restock. It is tried once.
    RestockNotRepeated "restock_not_repeated"
    /// Breaks: growing writes Postgres first. Redis grows first.
    RaiseInRedisFirst "raise_in_redis_first"
    /// Breaks: absence is never read as zero. A reserve call takes a missing key for an untouched one.
    MissingKeyAsZero "missing_key_as_zero"
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
        const NONE: bool = is(Mutant::ReleaseOnUnknownPublish);
        assert!(!NONE && Mutant::ALL.iter().all(|&mutant| !is(mutant)));
    }
}
