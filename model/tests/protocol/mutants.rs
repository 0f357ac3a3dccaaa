use model::{
    explore::explore,
    mutant::Mutant,
    protocol::Protocol,
    scope::{self, Scope},
};

fn breaks(mutant: Mutant, scope: &Scope) {
    let explored = explore(Protocol::new(scope, Some(mutant)));
    assert!(explored.broken.is_some(), "{mutant} is not noticed in {}", scope.name);
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident in $scope:ident,)*) => {
        $(#[test]
        fn $name() {
            breaks(Mutant::$mutant, &scope::$scope);
        })*

        #[test]
        fn every_mutant_is_tried() {
            let tried = [$(Mutant::$mutant.name(),)*];
            let all: Vec<&str> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
            assert_eq!(tried.as_slice(), all);
        }
    };
}

mutants! {
    release_on_unknown_publish: ReleaseOnUnknownPublish in CLAIMS,
    success_on_late_acknowledgement: SuccessOnLateAcknowledgement in CLAIMS,
    offsets_not_in_transaction: OffsetsNotInTransaction in TWO_WORKERS,
    no_batch_key: NoBatchKey in CLAIMS,
    end_offsets_before_expired: EndOffsetsBeforeExpired in CLAIMS,
    no_end_offsets: NoEndOffsets in CLAIMS,
    no_abandoned_row: NoAbandonedRow in CLAIMS,
    rebuild_without_wait: RebuildWithoutWait in REBUILD,
    rebuild_without_kafka: RebuildWithoutKafka in REBUILD,
    rebuild_without_cut: RebuildWithoutCut in REBUILD,
    rebuild_with_two_snapshots: RebuildWithTwoSnapshots in REBUILD,
    no_epoch_check_in_commit: NoEpochCheckInCommit in TWO_REBUILDERS,
    no_run_id_check: NoRunIdCheck in REBUILD,
    release_by_user_alone: ReleaseByUserAlone in CLAIMS,
    settle_before_release: SettleBeforeRelease in CLAIMS,
    restock_not_repeated: RestockNotRepeated in CANCEL,
    raise_in_redis_first: RaiseInRedisFirst in RAISE,
    missing_key_as_zero: MissingKeyAsZero in REBUILD,
    shared_revision: SharedRevision in TWO_WRITERS,
}
