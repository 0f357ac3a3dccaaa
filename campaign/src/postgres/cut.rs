//! Table `epoch_cut`: where in the topic a life of the state ends.

use std::collections::HashMap;

use sqlx::Row;

use super::database::Session;
use crate::identity::{CampaignId, Epoch};

/// End offsets by partition, by the epoch whose rebuild read them.
pub type Cuts = HashMap<Epoch, HashMap<i32, i64>>;

/// Whether a record came too late to count: the rebuild of a later epoch did not see it. An epoch without a cut (its
/// rebuild never came to its transaction) makes nothing stale.
pub fn is_stale(cuts: &Cuts, epoch: Epoch, partition: i32, offset: i64) -> bool {
    cuts.iter()
        .filter(|(later, _)| **later > epoch)
        .filter_map(|(_, cut)| cut.get(&partition))
        .any(|end| offset >= *end)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_stale_at_or_past_the_cut_of_a_later_epoch() {
        let cuts = Cuts::from([
            (Epoch(20), HashMap::from([(0, 100), (1, 50)])),
            (Epoch(30), HashMap::from([(0, 200)])),
        ]);
        for (epoch, partition, offset, stale) in [
            (10, 0, 99, false),
            (10, 0, 100, true),
            (10, 0, 500, true),
            (10, 1, 50, true),
            (10, 2, 1_000, false),
            (20, 0, 150, false),
            (20, 0, 200, true),
            (20, 1, 50, false),
            (25, 0, 200, true),
            (30, 0, 1_000, false),
            (40, 0, 1_000, false),
        ] {
            assert_eq!(
                is_stale(&cuts, Epoch(epoch), partition, offset),
                stale,
                "epoch {epoch}, {partition}@{offset}"
            );
        }
        assert!(!is_stale(&Cuts::new(), Epoch(1), 0, 1));
    }
}
