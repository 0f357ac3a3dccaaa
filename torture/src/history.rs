//! What clients asked and were told, with times: the evidence that the checker judges.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use campaign::{
    identity::{RequestId, UserId},
    name::CampaignName,
};
use serde::Serialize;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// `POST /coupon-issues`.
    Claim {
        /// The request that its `Idempotency-Key` names; `None`: sent without a key.
        keyed: Option<RequestId>,
    },
    /// `GET /coupon-issues/{request}`.
    Status {
        /// Which.
        request: RequestId,
    },
    /// `POST /coupons/{coupon}/use`.
    Use {
        /// Which.
        coupon: RequestId,
    },
    /// `POST /coupons/{coupon}/cancel`.
    Cancel {
        /// Which.
        coupon: RequestId,
    },
}

/// What the door said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// The HTTP status.
    pub http: u16,
    /// `result`, `status` or `code` of the body.
    pub word: String,
    /// The request that the body names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `outcome: unknown`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// When it was sent, in µs since the history began.
    pub started: u64,
    /// When the answer was there, or when the client gave up.
    pub ended: u64,
    /// Which intake.
    pub door: usize,
    /// Of which campaign.
    pub campaign: CampaignName,
    /// By whom, or about whose coupon.
    pub user: UserId,
    /// What was asked.
    #[serde(flatten)]
    pub ask: Ask,
    /// What was answered; `None`: nothing, so it may have been done, or may be done later.
    pub told: Option<Told>,
}

impl Operation {
    /// The answer's word; empty where there is none.
    pub fn word(&self) -> &str {
        self.told.as_ref().map_or("", |told| &told.word)
    }

    /// Whether it certainly did nothing: refused, or answered without having counted.
    pub fn refused(&self) -> bool {
        match &self.told {
            None => false,
            Some(told) => !told.unknown && !matches!(told.word.as_str(), "SUCCESS" | "PENDING"),
        }
    }

    /// When its effect was over at the latest: what has no answer may still be under way.
    pub fn over(&self) -> u64 {
        match &self.told {
            Some(told) if !told.unknown => self.ended,
            _ => u64::MAX,
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = |micros: u64| micros as f64 / 1e6;
        write!(
            f,
            "{:.3}–{:.3} s, door {}: ",
            seconds(self.started),
            seconds(self.ended),
            self.door
        )?;
        match &self.ask {
            Ask::Claim { keyed: Some(request) } => write!(f, "claim with the key of {request}")?,
            Ask::Claim { keyed: None } => write!(f, "claim")?,
            Ask::Status { request } => write!(f, "status of {request}")?,
            Ask::Use { coupon } => write!(f, "use {coupon}")?,
            Ask::Cancel { coupon } => write!(f, "cancel {coupon}")?,
        }
        match &self.told {
            None => write!(f, " → no answer"),
            Some(told) => {
                write!(f, " → {} {}", told.http, told.word)?;
                if let Some(reason) = &told.reason {
                    write!(f, " {reason}")?;
                }
                if let Some(request) = told.request {
                    write!(f, " {request}")?;
                }
                if told.unknown {
                    write!(f, ", outcome unknown")?;
                }
                Ok(())
            }
        }
    }
}

/// Gathers a history.
pub struct Recorder {
    began: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            operations: Mutex::default(),
        }
    }
}

impl Recorder {
    /// µs since the history began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// One more operation.
    pub fn add(&self, operation: Operation) {
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(operation);
    }

    /// All of it so far.
    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.operations.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How often each ask was answered by each word, as `claim SUCCESS`.
pub fn count(history: &[Operation]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for operation in history {
        let ask = match operation.ask {
            Ask::Claim { .. } => "claim",
            Ask::Status { .. } => "status",
            Ask::Use { .. } => "use",
            Ask::Cancel { .. } => "cancel",
        };
        let word = match &operation.told {
            None => "no answer".to_owned(),
            Some(told) if told.unknown => format!("{} (unknown)", told.word),
            Some(told) => told.word.clone(),
        };
        *counts.entry(format!("{ask} {word}")).or_default() += 1;
    }
    counts
}
