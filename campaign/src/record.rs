//! The record on `coupon.issue.requests`: one reserved batch.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{
    identity::{BatchId, CampaignId, Epoch, RequestId, Reservation, UserId},
    name::CampaignName,
};

/// The version that this release writes; it also reads nothing else.
pub const VERSION: u32 = 1;
/// Most claims of one reserve call and so of one record.
pub const MAX_CLAIMS: usize = 256;

/// One batch of reserved claims. JSON; every identity is a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRecord {
    /// The record's version, 1.
    pub v: u32,
    /// `namespace/name`, for people who read the topic.
    pub campaign: CampaignName,
    /// The campaign's id, as the state in Redis has it.
    pub id: CampaignId,
    /// The life of the state in which the claims were reserved.
    pub epoch: Epoch,
    /// The unit of decision.
    pub batch: BatchId,
    /// When it was reserved, in ms by Redis' clock.
    pub reserved_at: i64,
    /// In the order of arrival.
    pub claims: Vec<RecordedClaim>,
}

/// One claim of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedClaim {
    /// Its place in the reserve call. Claims that were refused leave gaps.
    pub i: u16,
    /// Who claims.
    pub user_id: UserId,
    /// The request, and the coupon's id to be.
    pub request_id: RequestId,
}

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not the JSON that we write.
    #[error("not a claim record: {0}")]
    Json(#[from] serde_json::Error),
    /// From another release.
    #[error("claim record of version {0}, this release reads {VERSION}")]
    Version(u32),
    /// No claims, or more than one call can reserve, or an index twice.
    #[error("claim record with {0} claims; want 1 to {MAX_CLAIMS} with distinct indexes")]
    Claims(usize),
}

impl ClaimRecord {
    /// The bytes for Kafka.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Reads bytes from Kafka. What this refuses goes to the dead letters as it came.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record: Self = serde_json::from_slice(bytes)?;
        if record.v != VERSION {
            return Err(RecordError::Version(record.v));
        }
        let mut indexes: Vec<u16> = record.claims.iter().map(|claim| claim.i).collect();
        indexes.sort_unstable();
        indexes.dedup();
        if indexes.is_empty() || indexes.len() > MAX_CLAIMS || indexes.len() != record.claims.len() {
            return Err(RecordError::Claims(record.claims.len()));
        }
        Ok(record)
    }

    /// The reservation of one of its claims.
    pub fn reservation(&self, claim: &RecordedClaim) -> Reservation {
        self.batch.reservation(claim.i)
    }
}

/// Cuts of a campaign: epoch → partition → end offset when that epoch's state was rebuilt.
pub type Cuts = HashMap<Epoch, HashMap<i32, i64>>;

/// Whether a record came too late for a life of the state: it lies at or past the cut of an epoch later than its own.
/// That rebuild did not count it, so its slot may be somebody else's. An epoch without a cut makes nothing stale; a
/// partition that a cut does not name was added after it, so that all of its records are.
pub fn is_stale(epoch: Epoch, partition: i32, offset: i64, cuts: &Cuts) -> bool {
    cuts.iter()
        .any(|(&later, ends)| later > epoch && offset >= ends.get(&partition).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Instance;

    fn record() -> ClaimRecord {
        ClaimRecord {
            v: VERSION,
            campaign: CampaignName::new("shop", "sale").expect("valid"),
            id: CampaignId(uuid::Uuid::now_v7()),
            epoch: Epoch(1_700_000_000),
            batch: Instance::random().batch(3),
            reserved_at: 1_700_000_000_123,
            claims: vec![RecordedClaim {
                i: 4,
                user_id: "9007199254740993".parse().expect("valid"),
                request_id: RequestId::fresh(),
            }],
        }
    }

    #[test]
    fn a_record_reads_what_it_wrote() {
        let record = record();
        let bytes = record.encode().expect("encodes");
        assert_eq!(ClaimRecord::decode(&bytes).expect("decodes"), record);
        let json: serde_json::Value = serde_json::from_slice(&bytes).expect("json");
        assert_eq!(json["claims"][0]["userId"], "9007199254740993");
        assert!(json["batch"].is_string() && json["reservedAt"].is_i64());
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        let whole = serde_json::to_value(record()).expect("json");
        let without = |path: &str| {
            let mut json = whole.clone();
            json["claims"][0].as_object_mut().expect("object").remove(path);
            serde_json::to_vec(&json).expect("json")
        };
        let with = |key: &str, value: serde_json::Value| {
            let mut json = whole.clone();
            json[key] = value;
            serde_json::to_vec(&json).expect("json")
        };
        for bad in [
            b"{".to_vec(),
            b"".to_vec(),
            without("userId"),
            without("requestId"),
            with("v", 2.into()),
            with("claims", serde_json::json!([])),
            with("batch", "x".into()),
            with("claims", serde_json::json!([whole["claims"][0], whole["claims"][0]])),
        ] {
            assert!(ClaimRecord::decode(&bad).is_err(), "{}", String::from_utf8_lossy(&bad));
        }
    }

    #[test]
    fn stale_is_what_lies_past_the_cut_of_a_later_epoch() {
        let cuts: Cuts = HashMap::from([
            (Epoch(5), HashMap::from([(0, 100), (1, 0)])),
            (Epoch(9), HashMap::from([(0, 200)])),
        ]);
        for (epoch, partition, offset, stale) in [
            (4, 0, 99, false),
            (4, 0, 100, true),
            (4, 1, 0, true),
            (5, 0, 150, false),
            (5, 0, 200, true),
            (9, 0, 500, false),
            // The cuts have no such partition: it was added later.
            (4, 2, 0, true),
            (9, 2, 0, false),
        ] {
            assert_eq!(
                is_stale(Epoch(epoch), partition, offset, &cuts),
                stale,
                "{epoch} {partition} {offset}"
            );
        }
    }
}
