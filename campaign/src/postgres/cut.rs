//! Table `epoch_cut`: where in the topic a life of the state ends. [`crate::record::is_stale`] judges by it.

use sqlx::Row;

use super::database::Session;
use crate::{
    identity::{CampaignId, Epoch},
    record::Cuts,
};

/// All cuts of epochs later than `after`.
pub(super) async fn read_cuts(session: &mut Session, campaign: CampaignId, after: Epoch) -> Result<Cuts, sqlx::Error> {
    let rows = sqlx::query("SELECT epoch, partition, end_offset FROM epoch_cut WHERE campaign_id = $1 AND epoch > $2")
        .bind(campaign.0)
        .bind(after.0)
        .fetch_all(&mut **session)
        .await?;
    let mut cuts = Cuts::new();
    for row in rows {
        cuts.entry(Epoch(row.try_get("epoch")?))
            .or_default()
            .insert(row.try_get("partition")?, row.try_get("end_offset")?);
    }
    Ok(cuts)
}
