//! Rules of the protocol that can be left out, one at a time. The promise must break without any of them.

use std::fmt;

macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A rule that is left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $variant,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// In snake case, the same as in the product.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

mutants! {
    /// The door gives the slots of an unknown publish back.
    ReleaseOnUnknownPublish = "release_on_unknown_publish",
    /// The door answers SUCCESS to an acknowledgement after `publishTimeout`.
    SuccessOnLateAcknowledgement = "success_on_late_acknowledgement",
    /// `consumed` moves in a transaction of its own, before that of the rows.
    OffsetsNotInTransaction = "offsets_not_in_transaction",
    /// The worker does not look whether a batch is decided.
    NoBatchKey = "no_batch_key",
    /// The sweeper reads the end offsets before it looks for expired batches.
    EndOffsetsBeforeExpired = "end_offsets_before_expired",
    /// The sweeper takes what it finds undecided for not stored.
    NoEndOffsets = "no_end_offsets",
    /// The sweeper releases and settles without writing `abandoned`.
    NoAbandonedRow = "no_abandoned_row",
    /// The rebuild does not wait out `publishTimeout`.
    RebuildWithoutWait = "rebuild_without_wait",
    /// The rebuild reads rows only.
    RebuildWithoutKafka = "rebuild_without_kafka",
    /// The rebuild stores no cut.
    RebuildWithoutCut = "rebuild_without_cut",
    /// The rebuild reads the rows in one transaction, and what is undecided in another one.
    RebuildWithTwoSnapshots = "rebuild_with_two_snapshots",
    /// The rebuild's last script does not compare epochs.
    NoEpochCheckInCommit = "no_epoch_check_in_commit",
    /// Scripts do not compare the run id of the server.
    NoRunIdCheck = "no_run_id_check",
    /// Release frees the user's slot, whichever reservation holds it.
    ReleaseByUserAlone = "release_by_user_alone",
    /// Batches leave `pending` before their slots are free.
    SettleBeforeRelease = "settle_before_release",
    /// The relay tries a restock once.
    RestockNotRepeated = "restock_not_repeated",
    /// A raise of the quantity is written to Redis before Postgres.
    RaiseInRedisFirst = "raise_in_redis_first",
    /// Reserve reads a missing key as zero.
    MissingKeyAsZero = "missing_key_as_zero",
    /// Redis takes terms ahead of Postgres though it has others of the same revision.
    SharedRevision = "shared_revision",
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
