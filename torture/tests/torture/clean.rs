//! What may happen while the promise holds.

use campaign::postgres::coupon::CouponStatus::{Canceled, Issued};
use torture::history::Ask;

use crate::stage::{Stage, request, unknown};

#[track_caller]
fn holds(stage: &Stage) {
    assert_eq!(stage.broken(), Vec::<&str>::new());
}

#[test]
fn a_sale_without_faults_holds() {
    let mut stage = Stage::default();
    stage
        .claim("a", "SUCCESS", Some(request(1)))
        .status("a", request(1), "PENDING")
        .status("a", request(1), "ISSUED")
        .claim("a", "DUPLICATE", Some(request(1)))
        .claim("b", "SOLD_OUT", None)
        .row("a", request(1), Issued);
    holds(&stage);
}

#[test]
fn an_unknown_claim_may_become_a_row_or_nothing() {
    let mut stage = Stage::default();
    let ask = |number| Ask::Claim {
        keyed: Some(request(number)),
    };
    stage
        .ask("a", ask(1), Some(unknown("COUPON_ISSUE_KAFKA_ERROR")))
        .ask("b", ask(2), None)
        .ask("c", ask(3), None)
        .row("a", request(1), Issued)
        .row("b", request(2), Issued);
    holds(&stage);
}

#[test]
fn a_rejected_request_may_be_tried_again_with_its_key() {
    let mut stage = Stage::default();
    stage
        .keyed("a", request(1), "PENDING", Some(request(1)))
        .status("a", request(1), "REJECTED")
        .keyed("a", request(1), "SUCCESS", Some(request(1)))
        .status("a", request(1), "ISSUED")
        .row("a", request(1), Issued);
    holds(&stage);
}

#[test]
fn a_claim_without_an_answer_may_run_later_than_its_client_waited() {
    let mut stage = Stage::default();
    let ask = Ask::Claim {
        keyed: Some(request(1)),
    };
    stage
        .ask("a", ask, None)
        .status("a", request(1), "REJECTED")
        .status("a", request(1), "PENDING")
        .status("a", request(1), "ISSUED")
        .row("a", request(1), Issued);
    holds(&stage);
}

#[test]
fn a_claim_that_overlaps_the_success_may_be_told_anything() {
    let mut stage = Stage::default();
    stage
        .claim("a", "SOLD_OUT", None)
        .lasting()
        .claim("a", "SUCCESS", Some(request(1)))
        .row("a", request(1), Issued);
    holds(&stage);
}

#[test]
fn after_the_database_was_put_back_an_issued_coupon_may_be_pending_for_a_while() {
    let mut stage = Stage::default();
    stage
        .claim("a", "SUCCESS", Some(request(1)))
        .status("a", request(1), "ISSUED")
        .put_back()
        .status("a", request(1), "PENDING")
        .status("a", request(1), "ISSUED")
        .row("a", request(1), Issued);
    holds(&stage);
}

#[test]
fn a_returned_slot_may_be_held_by_another_user() {
    let mut stage = Stage::default();
    stage.held.quantity = 1;
    stage
        .claim("a", "SUCCESS", Some(request(1)))
        .redeem("a", Ask::Cancel { coupon: request(1) }, "CANCELED")
        .row("a", request(1), Canceled);
    stage.held.rows[0].slot_returned = true;
    stage
        .claim("b", "SUCCESS", Some(request(2)))
        .row("b", request(2), Issued);
    holds(&stage);
}
