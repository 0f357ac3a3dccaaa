//! Judges a history against what the servers hold at the end. Functions without I/O; what a rule needs to know about
//! time is only which operation ended before another one began.

use std::collections::{BTreeMap, HashMap, HashSet};

use campaign::{
    identity::{RequestId, UserId},
    name::CampaignName,
    postgres::coupon::CouponStatus,
};
use serde::{Deserialize, Serialize};

use crate::history::{Ask, Operation};

/// A coupon's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub user: UserId,
    /// Its request.
    pub request: RequestId,
    /// Where it stands.
    pub status: CouponStatus,
    /// Whether its cancel gave the slot back.
    pub slot_returned: bool,
}

/// What the servers hold of one campaign at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Coupons to give.
    pub quantity: i64,
    /// Slots that parked claims hold.
    pub parked: i64,
    /// All coupons.
    pub rows: Vec<Row>,
}

/// What is wrong. Names are stable: reports and mutants' tests rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A claim was answered SUCCESS and its request has no row.
    SuccessWithoutRow,
    /// A status said ISSUED and the request has no row.
    IssuedWithoutRow,
    /// Two requests of one user were successes.
    TwoSuccesses,
    /// A user holds two rows.
    UserTwice,
    /// More slots are held than there are.
    TooManyRows,
    /// A user who had been told SUCCESS was told SOLD_OUT.
    SoldOutAfterSuccess,
    /// A user who had been told SUCCESS was told that another request of his holds the coupon.
    AnotherAfterSuccess,
    /// A request that was issued, successful or rejected turned into something earlier.
    StatusWentBack,
    /// DUPLICATE was said to a user none of whose other claims can have counted.
    DuplicateOfNobody,
    /// A row came from a claim that nobody sent or that was refused.
    UnfoundedRow,
    /// A coupon was used or canceled twice, or both.
    RedeemedTwice,
    /// A use or cancel was confirmed and the row does not say so.
    RedemptionLost,
    /// A row is used or canceled and nobody asked for it.
    RedemptionUnasked,
    /// An answer that no client can expect.
    UnexpectedAnswer,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::SuccessWithoutRow,
        Self::IssuedWithoutRow,
        Self::TwoSuccesses,
        Self::UserTwice,
        Self::TooManyRows,
        Self::SoldOutAfterSuccess,
        Self::AnotherAfterSuccess,
        Self::StatusWentBack,
        Self::DuplicateOfNobody,
        Self::UnfoundedRow,
        Self::RedeemedTwice,
        Self::RedemptionLost,
        Self::RedemptionUnasked,
        Self::UnexpectedAnswer,
    ];

    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::SuccessWithoutRow => "success-without-row",
            Self::IssuedWithoutRow => "issued-without-row",
            Self::TwoSuccesses => "two-successes",
            Self::UserTwice => "user-twice",
            Self::TooManyRows => "too-many-rows",
            Self::SoldOutAfterSuccess => "sold-out-after-success",
            Self::AnotherAfterSuccess => "another-after-success",
            Self::StatusWentBack => "status-went-back",
            Self::DuplicateOfNobody => "duplicate-of-nobody",
            Self::UnfoundedRow => "unfounded-row",
            Self::RedeemedTwice => "redeemed-twice",
            Self::RedemptionLost => "redemption-lost",
            Self::RedemptionUnasked => "redemption-unasked",
            Self::UnexpectedAnswer => "unexpected-answer",
        }
    }
}

/// One thing that is wrong, and what it is seen by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// A [`Rule`]'s name, a finding of the audit, or what the run itself saw.
    pub kind: String,
    /// Whom or what it concerns.
    pub subject: String,
    /// Operations, rows or numbers.
    pub evidence: Vec<String>,
}

/// A time in which an older copy of the database took over, in µs of the history. What a status said before its end may not
/// hold after its begin (sessions of the old server may answer for a moment after its death); what counts in the end
/// does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// When the old server was killed.
    pub from: u64,
    /// When the copy served.
    pub to: u64,
}

/// Answers to a claim that clients are told to expect.
const CLAIM_WORDS: [&str; 11] = [
    "SUCCESS",
    "PENDING",
    "DUPLICATE",
    "SOLD_OUT",
    "NOT_OPEN_YET",
    "CLOSED",
    "PAUSED",
    "REBUILDING",
    "OVERLOADED",
    "COUPON_ISSUE_KAFKA_ERROR",
    "STATE_UNAVAILABLE",
];
const STATUS_WORDS: [&str; 5] = ["PENDING", "ISSUED", "REJECTED", "UNKNOWN_REQUEST", "STATE_UNAVAILABLE"];
const REDEMPTION_WORDS: [&str; 6] = [
    "USED",
    "CANCELED",
    "ALREADY_USED",
    "ALREADY_CANCELED",
    "COUPON_NOT_FOUND",
    "STATE_UNAVAILABLE",
];

/// Everything that is wrong, in a stable order.
pub fn check(history: &[Operation], held: &BTreeMap<CampaignName, Held>, put_back: &[PutBack]) -> Vec<Violation> {
    let mut by_user: BTreeMap<(&CampaignName, &UserId), Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        let operations = by_user.entry((&operation.campaign, &operation.user)).or_default();
        operations.push(operation);
    }
    let mut found = Found::default();
    for (name, held) in held {
        held_rows(name, held, &by_user, &mut found);
    }
    let rows: HashMap<(&CampaignName, RequestId), &Row> = held
        .iter()
        .flat_map(|(name, held)| held.rows.iter().map(move |row| ((name, row.request), row)))
        .collect();
    for ((campaign, user), mut operations) in by_user {
        operations.sort_by_key(|operation| operation.started);
        let one = OneUser {
            campaign,
            user,
            operations: &operations,
            rows: &rows,
            put_back,
        };
        one.successes(&mut found);
        one.statuses(&mut found);
        one.duplicates(&mut found);
        one.redemptions(&mut found);
        one.words(&mut found);
    }
    found.violations
}

#[derive(Default)]
struct Found {
    violations: Vec<Violation>,
}

impl Found {
    fn add(&mut self, rule: Rule, subject: String, evidence: Vec<String>) {
        self.violations.push(Violation {
            kind: rule.name().to_owned(),
            subject,
            evidence,
        });
    }
}

fn lines(operations: &[&Operation]) -> Vec<String> {
    operations.iter().map(ToString::to_string).collect()
}

/// Rules about rows: how many, whose, and whether somebody asked for them.
fn held_rows(
    name: &CampaignName,
    held: &Held,
    by_user: &BTreeMap<(&CampaignName, &UserId), Vec<&Operation>>,
    found: &mut Found,
) {
    let occupying = held.rows.iter().filter(|row| !row.slot_returned).count() as i64 + held.parked;
    if occupying > held.quantity {
        let text = format!("{occupying} of {} slots are held", held.quantity);
        found.add(Rule::TooManyRows, name.to_string(), vec![text]);
    }
    let mut users = HashSet::new();
    for row in &held.rows {
        let subject = || format!("{name}, user {}, coupon {}", row.user, row.request);
        let operations = by_user.get(&(name, &row.user)).map_or(&[][..], Vec::as_slice);
        let evidence = || {
            let row = format!("row {} of {}: {}", row.request, row.user, row.status.as_str());
            std::iter::once(row).chain(lines(operations)).collect()
        };
        if !users.insert(&row.user) {
            found.add(Rule::UserTwice, subject(), evidence());
        }
        let founded = operations.iter().any(|operation| match operation.ask {
            Ask::Claim { keyed } => !operation.refused() && keyed.is_none_or(|request| request == row.request),
            _ => false,
        });
        if !founded {
            found.add(Rule::UnfoundedRow, subject(), evidence());
        }
        let asked = |wanted: fn(&Ask) -> bool| operations.iter().any(|operation| wanted(&operation.ask));
        let unasked = match row.status {
            CouponStatus::Issued => false,
            CouponStatus::Used => !asked(|ask| matches!(ask, Ask::Use { .. })),
            CouponStatus::Canceled => !asked(|ask| matches!(ask, Ask::Cancel { .. })),
        };
        if unasked {
            found.add(Rule::RedemptionUnasked, subject(), evidence());
        }
    }
}

/// The operations of one user in one campaign, by their start.
struct OneUser<'a> {
    campaign: &'a CampaignName,
    user: &'a UserId,
    operations: &'a [&'a Operation],
    rows: &'a HashMap<(&'a CampaignName, RequestId), &'a Row>,
    put_back: &'a [PutBack],
}

/// What a request was said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Success(RequestId),
    Issued(RequestId),
}

impl Said {
    fn request(self) -> RequestId {
        match self {
            Self::Success(request) | Self::Issued(request) => request,
        }
    }
}

fn said(operation: &Operation) -> Option<Said> {
    let told = operation.told.as_ref()?;
    match (&operation.ask, told.word.as_str()) {
        (Ask::Claim { .. }, "SUCCESS") => Some(Said::Success(told.request?)),
        (Ask::Status { request }, "ISSUED") => Some(Said::Issued(*request)),
        _ => None,
    }
}

impl OneUser<'_> {
    fn subject(&self) -> String {
        format!("{}, user {}", self.campaign, self.user)
    }

    fn add(&self, rule: Rule, found: &mut Found) {
        found.add(rule, self.subject(), lines(self.operations));
    }

    fn put_back_between(&self, from: u64, to: u64) -> bool {
        self.put_back
            .iter()
            .any(|put_back| put_back.from <= to && put_back.to >= from)
    }

    fn successes(&self, found: &mut Found) {
        let successes: Vec<(&Operation, Said)> = self
            .operations
            .iter()
            .filter_map(|operation| Some((*operation, said(operation)?)))
            .collect();
        let Some(&(_, first)) = successes.first() else {
            return;
        };
        if successes.iter().any(|(_, said)| said.request() != first.request()) {
            self.add(Rule::TwoSuccesses, found);
        }
        let without_row = successes.iter().find(|(_, said)| {
            let row = self.rows.get(&(self.campaign, said.request()));
            row.is_none_or(|row| row.user != *self.user)
        });
        match without_row {
            Some((_, Said::Success(_))) => self.add(Rule::SuccessWithoutRow, found),
            Some((_, Said::Issued(_))) => self.add(Rule::IssuedWithoutRow, found),
            None => {}
        }
        let Some(sure) = successes.iter().map(|(operation, _)| operation.ended).min() else {
            return;
        };
        for later in self.operations.iter().filter(|operation| operation.started > sure) {
            if !matches!(later.ask, Ask::Claim { .. }) {
                continue;
            }
            let other = later.told.as_ref().and_then(|told| told.request);
            match later.word() {
                "SOLD_OUT" => self.add(Rule::SoldOutAfterSuccess, found),
                "DUPLICATE" if other != Some(first.request()) => self.add(Rule::AnotherAfterSuccess, found),
                _ => continue,
            }
            return;
        }
    }

    /// A request's status only goes forward; a rejected one may be tried again with its key.
    fn statuses(&self, found: &mut Found) {
        for (i, earlier) in self.operations.iter().enumerate() {
            let rejected = match (&earlier.ask, earlier.word()) {
                (Ask::Status { request }, "REJECTED") => Some(*request),
                _ => None,
            };
            let decided = said(earlier);
            let Some(request) = decided.map(Said::request).or(rejected) else {
                continue;
            };
            let back = self.operations[i..].iter().any(|later| {
                let of_it = matches!(later.ask, Ask::Status { request: asked } if asked == request);
                if !of_it || later.started <= earlier.ended {
                    return false;
                }
                match (decided, later.word()) {
                    (Some(_), "REJECTED" | "UNKNOWN_REQUEST") | (Some(Said::Issued(_)), "PENDING") => {
                        !self.put_back_between(earlier.started, later.ended)
                    }
                    (None, "PENDING" | "ISSUED" | "UNKNOWN_REQUEST") => {
                        !self.put_back_between(earlier.started, later.ended)
                            && !self.tried_again(request, earlier, later)
                    }
                    _ => false,
                }
            });
            if back {
                self.add(Rule::StatusWentBack, found);
                return;
            }
        }
    }

    /// Whether a claim of this request may have run between the two.
    fn tried_again(&self, request: RequestId, earlier: &Operation, later: &Operation) -> bool {
        self.operations.iter().any(|claim| {
            matches!(claim.ask, Ask::Claim { keyed: Some(keyed) } if keyed == request)
                && claim.started < later.ended
                && claim.over() > earlier.started
        })
    }

    fn duplicates(&self, found: &mut Found) {
        let unfounded = self.operations.iter().any(|duplicate| {
            if !matches!(duplicate.ask, Ask::Claim { .. }) || duplicate.word() != "DUPLICATE" {
                return false;
            }
            !self.operations.iter().any(|other| {
                !std::ptr::eq(*other, *duplicate)
                    && matches!(other.ask, Ask::Claim { .. })
                    && other.started < duplicate.ended
                    && (!other.refused() || other.ended > duplicate.started)
            })
        });
        if unfounded {
            self.add(Rule::DuplicateOfNobody, found);
        }
    }

    fn redemptions(&self, found: &mut Found) {
        let mut confirmed: Vec<(RequestId, CouponStatus)> = Vec::new();
        for operation in self.operations {
            match (&operation.ask, operation.word()) {
                (Ask::Use { coupon }, "USED") => confirmed.push((*coupon, CouponStatus::Used)),
                (Ask::Cancel { coupon }, "CANCELED") => confirmed.push((*coupon, CouponStatus::Canceled)),
                _ => {}
            }
        }
        let coupons: HashSet<RequestId> = confirmed.iter().map(|(coupon, _)| *coupon).collect();
        if coupons.len() < confirmed.len() {
            self.add(Rule::RedeemedTwice, found);
        }
        let lost = confirmed.iter().any(|(coupon, status)| {
            let row = self.rows.get(&(self.campaign, *coupon));
            row.is_none_or(|row| row.status != *status)
        });
        if lost {
            self.add(Rule::RedemptionLost, found);
        }
    }

    fn words(&self, found: &mut Found) {
        let unexpected: Vec<&Operation> = self
            .operations
            .iter()
            .copied()
            .filter(|operation| {
                let Some(told) = &operation.told else { return false };
                let expected: &[&str] = match operation.ask {
                    Ask::Claim { .. } => &CLAIM_WORDS,
                    Ask::Status { .. } => &STATUS_WORDS,
                    Ask::Use { .. } | Ask::Cancel { .. } => &REDEMPTION_WORDS,
                };
                !expected.contains(&told.word.as_str())
            })
            .collect();
        if !unexpected.is_empty() {
            found.add(Rule::UnexpectedAnswer, self.subject(), lines(&unexpected));
        }
    }
}
