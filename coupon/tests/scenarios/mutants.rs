//! Each mutant of the product breaks the promise, and its scenario sees it.
//!
//! A mutant is one process, so each scenario runs in one of its own: this binary again, with `COUPON_MUTANT` set.

use std::process::Command;

use campaign::mutant::Mutant;

/// Runs a scenario as a mutant. It must fail, and say what it saw.
fn is_caught(mutant: Mutant, scenario: &str, sees: &str) {
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", scenario, "--nocapture"])
        .env("COUPON_MUTANT", mutant.name())
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    assert!(
        said.contains("running 1 test"),
        "there is no scenario {scenario}:\n{said}"
    );
    assert!(
        !ran.status.success(),
        "{mutant} keeps the promise of {scenario}:\n{said}"
    );
    let saw = panic_of(&said);
    assert!(
        saw.contains(sees),
        "{scenario} fails for another reason than {sees:?}:\n{said}"
    );
    println!("mutant {mutant}: caught by {scenario}: {saw}");
}

/// What the first panic said, on one line.
fn panic_of(said: &str) -> String {
    said.lines()
        .skip_while(|line| !line.contains("panicked at"))
        .skip(1)
        .take_while(|line| !line.starts_with("note:") && !line.contains("panicked at") && !line.is_empty())
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ")
}

macro_rules! caught {
    ($($test:ident: $mutant:ident by $scenario:literal, which sees $sees:literal;)*) => {
        $(
            #[test]
            #[ignore = "minutes for all of them: make mutants"]
            fn $test() {
                is_caught(Mutant::$mutant, $scenario, $sees);
            }
        )*

        #[test]
        fn each_has_its_scenario() {
            assert_eq!([$(Mutant::$mutant),*].as_slice(), Mutant::ALL);
        }
    };
}

caught! {
    release_on_unknown_publish: ReleaseOnUnknownPublish
        by "outage::a_slot_whose_acknowledgement_is_lost_is_sold_to_nobody_else",
        which sees "a SUCCESS was taken back";
    success_on_late_acknowledgement: SuccessOnLateAcknowledgement
        by "late_record::a_record_that_is_stored_after_the_cut_is_no_success_and_takes_no_slot",
        which sees "a SUCCESS was taken back";
    offsets_not_in_transaction: OffsetsNotInTransaction
        by "killed_worker::records_of_a_worker_that_died_before_its_commit_are_persisted_by_the_next_one",
        which sees "a SUCCESS was taken back";
    no_batch_key: NoBatchKey
        by "sweeper::a_record_that_comes_after_its_batch_was_abandoned_changes_nothing",
        which sees "a SUCCESS was taken back";
    end_offsets_before_expired: EndOffsetsBeforeExpired
        by "sweeper::a_claim_that_is_acknowledged_while_a_sweep_is_held_up_is_left_to_the_worker",
        which sees "a SUCCESS was taken back";
    no_end_offsets: NoEndOffsets
        by "sweeper::claims_that_wait_for_a_worker_are_left_to_it",
        which sees "a SUCCESS was taken back";
    no_abandoned_row: NoAbandonedRow
        by "sweeper::a_record_that_comes_after_its_batch_was_abandoned_changes_nothing",
        which sees "a SUCCESS was taken back";
    rebuild_without_wait: RebuildWithoutWait
        by "late_record::a_claim_that_is_acknowledged_in_time_is_in_the_rebuilt_state",
        which sees "a SUCCESS was taken back";
    rebuild_without_kafka: RebuildWithoutKafka
        by "rebuild::claims_that_are_still_in_kafka_keep_their_slots",
        which sees "140 of 100 coupons are sold";
    rebuild_without_cut: RebuildWithoutCut
        by "late_record::a_record_that_is_stored_after_the_cut_is_no_success_and_takes_no_slot",
        which sees "a SUCCESS was taken back";
    rebuild_with_two_snapshots: RebuildWithTwoSnapshots
        by "rebuild_overlaps::claims_that_a_worker_wants_to_persist_meanwhile_keep_their_slots",
        which sees "a SUCCESS was taken back";
    no_epoch_check_in_commit: NoEpochCheckInCommit
        by "rebuild_overlaps::an_older_rebuild_that_comes_back_opens_nothing",
        which sees "a SUCCESS was taken back";
    no_run_id_check: NoRunIdCheck
        by "older_redis::an_older_copy_is_found_and_everybody_who_was_accepted_is_honoured",
        which sees "a SUCCESS was taken back";
    release_by_user_alone: ReleaseByUserAlone
        by "sweeper::a_reservation_that_is_given_back_late_frees_nobody_elses_slot",
        which sees "a SUCCESS was taken back";
    settle_before_release: SettleBeforeRelease
        by "sweeper::a_sweep_that_is_cut_short_is_finished_by_the_next_one",
        which sees "a slot leaks";
    restock_not_repeated: RestockNotRepeated
        by "killed_worker::a_restock_that_redis_did_not_confirm_is_repeated",
        which sees "the slot of the canceled coupon is free";
    raise_in_redis_first: RaiseInRedisFirst
        by "raise::nothing_is_sold_that_postgres_has_no_room_for_yet",
        which sees "a SUCCESS was taken back";
    missing_key_as_zero: MissingKeyAsZero
        by "rebuild::a_state_that_has_lost_one_of_its_keys_sells_nothing_twice",
        which sees "a SUCCESS was taken back";
}
