//! A history and what the servers hold, written down by hand.

use std::collections::BTreeMap;

use campaign::{
    identity::{RequestId, UserId},
    name::CampaignName,
    postgres::coupon::CouponStatus,
};
use torture::{
    checker::{Held, PutBack, Row, Rule, check},
    history::{Ask, Operation, Told},
};
use uuid::Uuid;

/// Operations of one campaign, each of which takes a unit of time, and its rows.
pub struct Stage {
    pub history: Vec<Operation>,
    pub held: Held,
    pub put_back: Vec<PutBack>,
    now: u64,
}

pub fn sale() -> CampaignName {
    CampaignName::new("shop", "sale").unwrap()
}

pub fn user(name: &str) -> UserId {
    name.parse().unwrap()
}

/// The request with that number; odd ones are named by keys.
pub fn request(number: u128) -> RequestId {
    RequestId(Uuid::from_u128(number))
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            history: Vec::new(),
            held: Held {
                quantity: 10,
                ..Held::default()
            },
            put_back: Vec::new(),
            now: 0,
        }
    }
}

impl Stage {
    pub fn ask(&mut self, who: &str, ask: Ask, told: Option<Told>) -> &mut Self {
        self.now += 10;
        self.history.push(Operation {
            started: self.now,
            ended: self.now + 5,
            door: 0,
            campaign: sale(),
            user: user(who),
            ask,
            told,
        });
        self
    }

    /// A claim without a key.
    pub fn claim(&mut self, who: &str, word: &str, names: Option<RequestId>) -> &mut Self {
        self.ask(who, Ask::Claim { keyed: None }, Some(told(word, names)))
    }

    /// A claim with the key that names `keyed`.
    pub fn keyed(&mut self, who: &str, keyed: RequestId, word: &str, names: Option<RequestId>) -> &mut Self {
        self.ask(who, Ask::Claim { keyed: Some(keyed) }, Some(told(word, names)))
    }

    pub fn status(&mut self, who: &str, request: RequestId, word: &str) -> &mut Self {
        self.ask(who, Ask::Status { request }, Some(told(word, Some(request))))
    }

    pub fn redeem(&mut self, who: &str, ask: Ask, word: &str) -> &mut Self {
        self.ask(who, ask, Some(told(word, None)))
    }

    /// The last operation lasts so long that later ones overlap it.
    pub fn lasting(&mut self) -> &mut Self {
        self.history.last_mut().unwrap().ended += 1_000;
        self
    }

    pub fn row(&mut self, who: &str, request: RequestId, status: CouponStatus) -> &mut Self {
        self.held.rows.push(Row {
            user: user(who),
            request,
            status,
            slot_returned: false,
        });
        self
    }

    pub fn put_back(&mut self) -> &mut Self {
        self.now += 10;
        self.put_back.push(PutBack {
            from: self.now,
            to: self.now,
        });
        self
    }

    /// The rules that are broken, each once.
    pub fn broken(&self) -> Vec<&'static str> {
        let held = BTreeMap::from([(sale(), self.held.clone())]);
        let violations = check(&self.history, &held, &self.put_back);
        let mut kinds: Vec<&str> = Rule::ALL
            .iter()
            .map(|rule| rule.name())
            .filter(|name| violations.iter().any(|violation| violation.kind == *name))
            .collect();
        kinds.dedup();
        assert!(
            violations.iter().all(|violation| !violation.evidence.is_empty()),
            "a violation without evidence: {violations:?}"
        );
        kinds
    }
}

pub fn told(word: &str, request: Option<RequestId>) -> Told {
    Told {
        http: 200,
        word: word.to_owned(),
        request,
        ..Told::default()
    }
}

/// An answer that leaves open what happened.
pub fn unknown(word: &str) -> Told {
    Told {
        http: 503,
        unknown: true,
        ..told(word, None)
    }
}
