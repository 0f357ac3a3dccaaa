//! One fault of each kind in an otherwise clean history.

use campaign::postgres::coupon::CouponStatus::{Canceled, Issued, Used};
use torture::{checker::Rule, history::Ask};

use crate::stage::{Stage, request, unknown};

/// A sale in which nothing is wrong, to be spoiled.
fn clean() -> Stage {
    let mut stage = Stage::default();
    stage
        .claim("a", "SUCCESS", Some(request(1)))
        .status("a", request(1), "PENDING")
        .status("a", request(1), "ISSUED")
        .keyed("b", request(2), "SUCCESS", Some(request(2)))
        .redeem("b", Ask::Use { coupon: request(2) }, "USED")
        .claim("c", "SOLD_OUT", None)
        .row("a", request(1), Issued)
        .row("b", request(2), Used);
    assert_eq!(stage.broken(), Vec::<&str>::new());
    stage
}

#[track_caller]
fn finds(rule: Rule, spoil: impl FnOnce(&mut Stage)) {
    let mut stage = clean();
    spoil(&mut stage);
    assert_eq!(stage.broken(), [rule.name()]);
}

#[test]
fn a_success_without_its_row() {
    finds(Rule::SuccessWithoutRow, |stage| {
        stage.claim("d", "SUCCESS", Some(request(3)));
    });
}

#[test]
fn a_row_that_went_to_another_user() {
    let mut stage = clean();
    stage
        .claim("d", "SUCCESS", Some(request(3)))
        .row("c", request(3), Issued);
    assert_eq!(
        stage.broken(),
        [Rule::SuccessWithoutRow.name(), Rule::UnfoundedRow.name()]
    );
}

#[test]
fn an_issued_status_without_its_row() {
    finds(Rule::IssuedWithoutRow, |stage| {
        stage
            .ask("d", Ask::Claim { keyed: None }, None)
            .status("d", request(3), "ISSUED");
    });
}

#[test]
fn two_successes_of_one_user() {
    let mut stage = clean();
    stage
        .claim("a", "SUCCESS", Some(request(3)))
        .row("a", request(3), Issued);
    assert_eq!(stage.broken(), [Rule::TwoSuccesses.name(), Rule::UserTwice.name()]);
}

#[test]
fn two_rows_of_one_user() {
    finds(Rule::UserTwice, |stage| {
        stage
            .ask("a", Ask::Claim { keyed: None }, None)
            .row("a", request(3), Issued);
    });
}

#[test]
fn more_rows_than_slots() {
    finds(Rule::TooManyRows, |stage| stage.held.quantity = 1);
}

#[test]
fn parked_claims_hold_slots_too() {
    finds(Rule::TooManyRows, |stage| stage.held.parked = 9);
}

#[test]
fn sold_out_after_success() {
    finds(Rule::SoldOutAfterSuccess, |stage| {
        stage.claim("a", "SOLD_OUT", None);
    });
}

#[test]
fn another_request_holds_the_coupon_after_success() {
    finds(Rule::AnotherAfterSuccess, |stage| {
        stage.claim("a", "DUPLICATE", Some(request(9)));
    });
}

#[test]
fn an_issued_coupon_is_pending_again() {
    finds(Rule::StatusWentBack, |stage| {
        stage.status("a", request(1), "PENDING");
    });
}

#[test]
fn an_issued_coupon_is_pending_again_although_the_database_was_put_back_long_before() {
    let mut stage = Stage::default();
    stage
        .put_back()
        .claim("a", "SUCCESS", Some(request(1)))
        .status("a", request(1), "ISSUED")
        .status("a", request(1), "PENDING")
        .row("a", request(1), Issued);
    assert_eq!(stage.broken(), [Rule::StatusWentBack.name()]);
}

#[test]
fn a_success_is_rejected_or_unknown_later() {
    for word in ["REJECTED", "UNKNOWN_REQUEST"] {
        finds(Rule::StatusWentBack, |stage| {
            stage.status("b", request(2), word);
        });
    }
}

#[test]
fn a_rejected_request_comes_back_by_itself() {
    finds(Rule::StatusWentBack, |stage| {
        stage
            .keyed("d", request(3), "PENDING", Some(request(3)))
            .status("d", request(3), "REJECTED")
            .status("d", request(3), "ISSUED")
            .row("d", request(3), Issued);
    });
}

#[test]
fn a_duplicate_of_nobody() {
    finds(Rule::DuplicateOfNobody, |stage| {
        stage
            .claim("d", "SOLD_OUT", None)
            .claim("d", "DUPLICATE", Some(request(3)));
    });
}

#[test]
fn a_row_that_nobody_claimed() {
    finds(Rule::UnfoundedRow, |stage| {
        stage.row("d", request(3), Issued);
    });
}

#[test]
fn a_row_of_a_claim_that_was_refused() {
    finds(Rule::UnfoundedRow, |stage| {
        stage
            .keyed("d", request(3), "COUPON_ISSUE_KAFKA_ERROR", None)
            .row("d", request(3), Issued);
    });
}

#[test]
fn a_row_of_a_key_that_was_never_sent() {
    finds(Rule::UnfoundedRow, |stage| {
        let sent = Ask::Claim {
            keyed: Some(request(3)),
        };
        stage
            .ask("d", sent, Some(unknown("STATE_UNAVAILABLE")))
            .row("d", request(5), Issued);
    });
}

#[test]
fn a_coupon_used_twice() {
    finds(Rule::RedeemedTwice, |stage| {
        stage.redeem("b", Ask::Use { coupon: request(2) }, "USED");
    });
}

#[test]
fn a_coupon_used_and_canceled() {
    let mut stage = clean();
    stage.redeem("b", Ask::Cancel { coupon: request(2) }, "CANCELED");
    assert_eq!(
        stage.broken(),
        [Rule::RedeemedTwice.name(), Rule::RedemptionLost.name()]
    );
}

#[test]
fn a_cancel_that_was_confirmed_and_lost() {
    finds(Rule::RedemptionLost, |stage| {
        stage.redeem("a", Ask::Cancel { coupon: request(1) }, "CANCELED");
    });
}

#[test]
fn a_coupon_that_nobody_canceled() {
    finds(Rule::RedemptionUnasked, |stage| {
        stage.held.rows[0].status = Canceled;
    });
}

#[test]
fn an_answer_that_no_client_expects() {
    finds(Rule::UnexpectedAnswer, |stage| {
        stage.claim("d", "HTTP 500", None);
    });
}

#[test]
fn every_rule_has_its_planted_fault() {
    let tests = include_str!("planted.rs");
    for rule in Rule::ALL {
        assert!(tests.contains(&format!("finds(Rule::{rule:?}")) || tests.contains(&format!("Rule::{rule:?}.name()")));
    }
}
