//! Who and what takes part in a claim. All of these are strings on every wire: numbers over 2^53 would be rounded by
//! Lua and by JSON readers.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The user who claims: 1 to 128 bytes of UTF-8 without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserId(String);

/// Longest user id, in bytes.
pub const USER_ID_MAX_BYTES: usize = 128;

/// Why a text is not an identity.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdentityError {
    /// A user id that is empty or too long.
    #[error("a user id has 1 to {USER_ID_MAX_BYTES} bytes, this one has {0}")]
    UserIdLength(usize),
    /// A user id with a control character.
    #[error("a user id has no control characters")]
    UserIdControl,
    /// Not `<instance>-<n>`.
    #[error("{0:?} is not a batch: want <8 base32 characters>-<number>")]
    Batch(String),
    /// Not `<batch>.<i>`.
    #[error("{0:?} is not a reservation: want <batch>.<index>")]
    Reservation(String),
}

impl UserId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for UserId {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        if !(1..=USER_ID_MAX_BYTES).contains(&text.len()) {
            return Err(IdentityError::UserIdLength(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(IdentityError::UserIdControl);
        }
        Ok(Self(text))
    }
}

impl FromStr for UserId {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::try_from(text.to_owned())
    }
}

impl From<UserId> for String {
    fn from(user: UserId) -> Self {
        user.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! uuid_identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                Uuid::from_str(text).map(Self)
            }
        }
    };
}

uuid_identity!(
    /// What Postgres gives a campaign's name when it is first applied.
    CampaignId
);
uuid_identity!(
    /// One request of one user. A coupon's id is the id of the request that won it.
    RequestId
);

impl RequestId {
    /// A new request: UUID v7, so that rows of one time lie together in the index.
    pub fn fresh() -> Self {
        let now = Timestamp::now().as_millisecond().unsigned_abs();
        // From the thread's generator: what the kernel gives is a system call a claim.
        Self(uuid::Builder::from_unix_timestamp_millis(now, &rand::random()).into_uuid())
    }

    /// The same key of the same user in the same campaign is the same request: UUID v5 of the three.
    pub fn from_key(campaign: CampaignId, user: &UserId, key: &str) -> Self {
        // A user id has no control characters, so the NUL keeps ("ab", "c") apart from ("a", "bc").
        let name = format!("{user}\0{key}");
        Self(Uuid::new_v5(&campaign.0, name.as_bytes()))
    }
}

/// One life of a campaign's state in Redis. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// One start of an intake: 8 random base32 characters (RFC 4648, lower case).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance(String);

impl Instance {
    /// A new instance; 40 random bits.
    pub fn random() -> Self {
        let bits: u64 = rand::random();
        Self(
            (0..8)
                .map(|i| char::from(BASE32[(bits >> (5 * i)) as usize & 31]))
                .collect(),
        )
    }

    /// The `n`-th batch of this instance.
    pub fn batch(&self, n: u64) -> BatchId {
        BatchId(format!("{}-{n}", self.0))
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What one reserve call reserved: one record in Kafka, one unit of decision and settlement. `<instance>-<n>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BatchId(String);

impl BatchId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The `i`-th claim of this batch.
    pub fn reservation(&self, index: u16) -> Reservation {
        Reservation {
            batch: self.clone(),
            index,
        }
    }
}

impl TryFrom<String> for BatchId {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        let valid = text.split_once('-').is_some_and(|(instance, n)| {
            instance.len() == 8
                && instance.bytes().all(|b| BASE32.contains(&b))
                && (1..=20).contains(&n.len())
                && n.bytes().all(|b| b.is_ascii_digit())
        });
        if valid {
            Ok(Self(text))
        } else {
            Err(IdentityError::Batch(text))
        }
    }
}

impl FromStr for BatchId {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::try_from(text.to_owned())
    }
}

impl From<BatchId> for String {
    fn from(batch: BatchId) -> Self {
        batch.0
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One attempt of one request: `<batch>.<i>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reservation {
    /// The batch it was reserved in.
    pub batch: BatchId,
    /// Its place in that batch, from 0.
    pub index: u16,
}

impl TryFrom<String> for Reservation {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        let parts = text
            .rsplit_once('.')
            .and_then(|(batch, index)| Some((batch.parse().ok()?, index.parse().ok()?)));
        match parts {
            Some((batch, index)) => Ok(Self { batch, index }),
            None => Err(IdentityError::Reservation(text)),
        }
    }
}

impl FromStr for Reservation {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::try_from(text.to_owned())
    }
}

impl From<Reservation> for String {
    fn from(reservation: Reservation) -> Self {
        reservation.to_string()
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.batch, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_ids_have_1_to_128_bytes_and_no_control_characters() {
        assert!("u".parse::<UserId>().is_ok());
        assert!("u".repeat(128).parse::<UserId>().is_ok());
        assert!("9007199254740993".parse::<UserId>().is_ok());
        assert_eq!("".parse::<UserId>(), Err(IdentityError::UserIdLength(0)));
        assert_eq!("u".repeat(129).parse::<UserId>(), Err(IdentityError::UserIdLength(129)));
        for control in ["a\0", "a\n", "\u{7f}", "\u{85}"] {
            assert_eq!(control.parse::<UserId>(), Err(IdentityError::UserIdControl));
        }
    }

    #[test]
    fn batches_and_reservations_read_what_they_wrote() {
        let reservation = Instance::random().batch(7).reservation(255);
        assert_eq!(reservation.to_string().parse(), Ok(reservation));
        for bad in [
            "",
            "abc",
            "abcdefgh-",
            "ABCDEFGH-1",
            "abcdefgh-1.",
            "abcdefgh-1.x",
            "abcdefgh-1.70000",
        ] {
            assert!(bad.parse::<Reservation>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_key_names_one_request_of_one_user_in_one_campaign() {
        let campaign = CampaignId(Uuid::now_v7());
        let user = |u: &str| u.parse::<UserId>().expect("valid");
        let id = RequestId::from_key(campaign, &user("ab"), "c");
        assert_eq!(id, RequestId::from_key(campaign, &user("ab"), "c"));
        assert_ne!(id, RequestId::from_key(campaign, &user("a"), "bc"));
        assert_ne!(id, RequestId::from_key(CampaignId(Uuid::now_v7()), &user("ab"), "c"));
    }
}
