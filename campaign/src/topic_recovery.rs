//! Goes on with a topic of claims that was made anew or cut back, once somebody has decided that what was lost is lost.
//!
//! The door stays shut to the end. First the offsets are forgotten, so that what the topic holds now is read from its
//! beginning: who was told SUCCESS since gets his coupon. Then every live campaign is rebuilt from its rows and from those
//! records: slots of lost claims are free, and each epoch has a cut in the offsets of the new log. Then the door may open.

use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    kafka::{client::KafkaError, offsets::PastEnd},
    name::CampaignName,
    postgres::database::DatabaseError,
    rebuild::{Force, RebuildError, Rebuilder, Rebuilt},
};

/// Rebuilds at the same time: each waits some seconds for what is on its way.
const AT_ONCE: usize = 8;

/// Why a topic is not accepted; the door stays shut. To try again is safe.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// Postgres.
    #[error("accept the topic: {0}")]
    Database(#[from] DatabaseError),
    /// The topic cannot be read: it has to be there first.
    #[error("accept the topic: {0}; create it with `coupon topics create`")]
    Kafka(#[from] KafkaError),
    /// A campaign's state could not be built from it.
    #[error("accept the topic: {0}")]
    Rebuild(#[from] RebuildError),
    /// Somebody else's rebuild came between.
    #[error("accept the topic: another rebuild of {0} came between, try again")]
    Overtaken(CampaignName),
}

/// Logs that the topic of claims was found to be shortened, and what to do.
pub fn tell_shortened(topic: &str, found: PastEnd) {
    tracing::error!(
        topic,
        partition = found.partition,
        consumed = found.consumed,
        end = found.end,
        "the topic of claims was made anew or cut back, no claim is taken: restore it, or accept it as it is with `coupon topics accept`"
    );
}

/// Accepts the topic of claims as it is. Answers the campaigns that were rebuilt; `None`: it was not shortened.
pub async fn accept_topic(rebuilder: &Rebuilder) -> Result<Option<Vec<CampaignName>>, AcceptError> {
    let topic = rebuilder.naming.requests_topic();
    let watermarks = rebuilder.reader.watermarks(&topic).await?;
    let consumed = rebuilder.database.consumed(&topic).await?;
    // Also one that was shortened once more after an earlier try had forgotten its offsets.
    if let Some(found) = rebuilder.reader.past_end(&topic, &consumed, &watermarks).await?
        && rebuilder.database.report_shortened(&topic, found).await?
    {
        tell_shortened(&topic, found);
    }
    if !rebuilder.database.consume_anew(&topic).await? {
        return Ok(None);
    }
    let campaigns = rebuilder.database.live_campaigns().await?;
    let rebuilt = stream::iter(campaigns)
        .map(|campaign| async move {
            match rebuilder.rebuild(&campaign.name, Force::Always).await? {
                Rebuilt::Done { .. } | Rebuilt::NoCampaign => Ok(campaign.name),
                Rebuilt::NotNeeded | Rebuilt::Superseded => Err(AcceptError::Overtaken(campaign.name)),
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    rebuilder.database.accept_shortened(&topic).await?;
    tracing::info!(topic, "the topic of claims is accepted as it is: doors open");
    Ok(Some(rebuilt))
}
