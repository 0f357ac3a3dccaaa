//! Step 1: reads what there is. What cannot be read is a value, too: the next steps must not take it for nothing.

use std::fmt;

use campaign::{
    conservation::Tally,
    kafka::offsets::PastEnd,
    name::CampaignName,
    postgres::{campaign::CampaignRow, database::DatabaseError},
    rebuild::serves,
    redis::{
        connection::RedisError,
        state::{StateAnswer, StateNumbers},
    },
};
use jiff::Timestamp;

use crate::servers::Servers;

/// A server that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// No connection has been made since the start.
    NotConnected(String),
    /// Postgres.
    Postgres(String),
    /// Redis.
    Redis(String),
}

impl Unreadable {
    /// A condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotConnected(_) => "NotConnected",
            Self::Postgres(_) => "PostgresUnreadable",
            Self::Redis(_) => "RedisUnreadable",
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected(reason) | Self::Postgres(reason) | Self::Redis(reason) => f.write_str(reason),
        }
    }
}

impl From<DatabaseError> for Unreadable {
    fn from(error: DatabaseError) -> Self {
        Self::Postgres(error.to_string())
    }
}

impl From<RedisError> for Unreadable {
    fn from(error: RedisError) -> Self {
        Self::Redis(error.to_string())
    }
}

/// What was read of a campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// When.
    pub now: Timestamp,
    /// The live campaign in Postgres, if there is one.
    pub row: Result<Option<CampaignRow>, Unreadable>,
    /// The state in Redis.
    pub state: Result<StateAnswer, Unreadable>,
    /// Cancels whose slot Redis has not got back yet.
    pub restocks: Result<i64, Unreadable>,
    /// Where the topic of claims ends before what was consumed of it: no door takes claims.
    pub shortened: Option<PastEnd>,
}

impl Loaded {
    /// There is nothing to read.
    pub fn nothing(now: Timestamp) -> Self {
        Self {
            now,
            row: Ok(None),
            state: Ok(StateAnswer::NotInitialized),
            restocks: Ok(0),
            shortened: None,
        }
    }

    /// Nothing could be read.
    pub fn unconnected(now: Timestamp, reason: &str) -> Self {
        let reason = || Unreadable::NotConnected(reason.to_owned());
        Self {
            now,
            row: Err(reason()),
            state: Err(reason()),
            restocks: Err(reason()),
            shortened: None,
        }
    }

    /// The same, while the state is being built anew.
    pub fn rebuilding(&self) -> Self {
        let mut loaded = self.clone();
        if let Ok(Some(row)) = &self.row {
            loaded.state = Ok(StateAnswer::Rebuilding {
                campaign: row.id,
                epoch: row.epoch,
            });
        }
        loaded
    }

    /// The row and the numbers, where the state serves the campaign.
    pub fn serving(&self) -> Option<(&CampaignRow, &StateNumbers)> {
        match (&self.row, &self.state) {
            (Ok(Some(row)), Ok(answer @ StateAnswer::Present(numbers))) if serves(answer, row.id, row.epoch) => {
                Some((row, numbers))
            }
            _ => None,
        }
    }

    /// The first server that could not be read.
    pub fn unreadable(&self) -> Option<&Unreadable> {
        self.row
            .as_ref()
            .err()
            .or(self.state.as_ref().err())
            .or(self.restocks.as_ref().err())
    }

    /// The two sides of the equation, where all of them could be read.
    pub fn tally(&self) -> Option<Tally> {
        let (row, numbers) = self.serving()?;
        Some(Tally {
            quantity: numbers.quantity,
            taken: numbers.taken,
            pending: numbers.pending,
            issued: row.issued,
            parked: row.parked,
            restocks: *self.restocks.as_ref().ok()?,
        })
    }
}

/// Reads one campaign.
pub async fn load(servers: &Result<Servers, String>, name: &CampaignName) -> Loaded {
    let servers = match servers {
        Ok(servers) => servers,
        Err(reason) => return Loaded::unconnected(Timestamp::now(), reason),
    };
    let database = &servers.aligner.database;
    // The two are read beside each other: a server that hangs costs its timeout once.
    let (row, state) = tokio::join!(database.campaign(name), servers.aligner.state.state(name));
    let restocks = match &row {
        Ok(Some(row)) => waiting_restocks(servers, row).await.map_err(Unreadable::from),
        _ => Ok(0),
    };
    // If it cannot be read, Postgres is out, and the row says so.
    let topic = servers.aligner.rebuilder.naming.requests_topic();
    let shortened = match &row {
        Ok(_) => database.shortened_topic(&topic).await.unwrap_or_default(),
        Err(_) => None,
    };
    Loaded {
        now: Timestamp::now(),
        row: row.map_err(Unreadable::from),
        state: state.map_err(Unreadable::from),
        restocks,
        shortened,
    }
}

async fn waiting_restocks(servers: &Servers, row: &CampaignRow) -> Result<i64, DatabaseError> {
    let mut snapshot = servers.aligner.database.audit_snapshot().await?;
    let restocks = snapshot.waiting_restocks(row.id).await?;
    snapshot.close().await?;
    Ok(restocks)
}
