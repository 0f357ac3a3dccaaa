//! The end of a campaign: archived (its name is free) or retired (the next apply brings it back).

use sqlx::{Postgres, Row, postgres::PgArguments, query::Query};

use super::{
    campaign::{CampaignRow, campaign_columns},
    database::{Database, DatabaseError, micros, within},
};
use crate::{identity::CampaignId, name::CampaignName};

/// A campaign that is no longer live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCampaign {
    /// Its id.
    pub id: CampaignId,
    /// Archived; else retired.
    pub archived: bool,
}

impl Database {
    /// Archives a campaign, live or retired (`deletionPolicy: Delete`): its name is free, its claims are
    /// `CAMPAIGN_GONE`. False: it is archived already, or its terms are of another `revision` than the given one.
    pub async fn archive_campaign(&self, id: CampaignId, revision: i64) -> Result<bool, DatabaseError> {
        let query = sqlx::query(
            "UPDATE campaign SET archived_at = clock_timestamp() \
             WHERE id = $1 AND archived_at IS NULL AND revision = $2",
        )
        .bind(id.0)
        .bind(revision);
        self.ends("archive a campaign", query).await
    }

    /// Archives a retired campaign. False: it is archived already, or live again: claims of it may be on their way.
    pub async fn archive_retired_campaign(&self, id: CampaignId) -> Result<bool, DatabaseError> {
        let query = sqlx::query(
            "UPDATE campaign SET archived_at = clock_timestamp() \
             WHERE id = $1 AND archived_at IS NULL AND retired_at IS NOT NULL",
        )
        .bind(id.0);
        self.ends("archive a retired campaign", query).await
    }

    /// Retires a campaign (`deletionPolicy: Retain`): no door sees it, nothing rebuilds its state, and claims that are
    /// still on their way become rows. Its epoch is raised, so that a rebuild under way writes nothing any more and a
    /// state that an old primary brings back serves nobody; without a cut, that makes no claim stale. False: it is not
    /// live, or its terms are of another `revision` than the given one.
    pub async fn retire_campaign(&self, id: CampaignId, revision: i64) -> Result<bool, DatabaseError> {
        let query = sqlx::query(
            "UPDATE campaign SET retired_at = clock_timestamp(), \
             epoch = greatest(epoch + 1, extract(epoch FROM clock_timestamp())::bigint) \
             WHERE id = $1 AND archived_at IS NULL AND retired_at IS NULL AND revision = $2",
        )
        .bind(id.0)
        .bind(revision);
        self.ends("retire a campaign", query).await
    }

    /// Whether the one campaign that `query` may end was as it wants it.
    async fn ends(&self, what: &'static str, query: Query<'_, Postgres, PgArguments>) -> Result<bool, DatabaseError> {
        within(what, async {
            let mut session = self.session().await?;
            let done = query.execute(&mut *session).await?;
            session.finish();
            Ok(done.rows_affected() == 1)
        })
        .await
    }

    /// Retired campaigns, which the next apply of their name brings back, by name.
    pub async fn retired_campaigns(&self) -> Result<Vec<CampaignRow>, DatabaseError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaign WHERE archived_at IS NULL AND retired_at IS NOT NULL ORDER BY namespace, name"
        ));
        self.campaign_rows("read the retired campaigns", query).await
    }

    /// Brings a retired campaign back. `None`: no retired one has the name.
    pub(super) async fn revive_campaign(&self, name: &CampaignName) -> Result<Option<CampaignRow>, DatabaseError> {
        let query = sqlx::query(concat!(
            "UPDATE campaign SET retired_at = NULL \
             WHERE namespace = $1 AND name = $2 AND archived_at IS NULL AND retired_at IS NOT NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(name.namespace())
        .bind(name.name());
        self.campaign_row("bring a campaign back", query).await
    }

    /// The retired campaign of that name: what the next apply brings back.
    pub async fn retired_campaign(&self, name: &CampaignName) -> Result<Option<CampaignRow>, DatabaseError> {
        let query = sqlx::query(concat!(
            "SELECT ",
            campaign_columns!(),
            " FROM campaign \
             WHERE namespace = $1 AND name = $2 AND archived_at IS NULL AND retired_at IS NOT NULL"
        ))
        .bind(name.namespace())
        .bind(name.name());
        self.campaign_row("read a retired campaign", query).await
    }

    /// The retired campaign of that name, else the one that was archived last.
    pub async fn ended_campaign(&self, name: &CampaignName) -> Result<Option<EndedCampaign>, DatabaseError> {
        within("read an ended campaign", async {
            let mut session = self.session().await?;
            let row = sqlx::query(
                "SELECT id, archived_at IS NOT NULL AS archived FROM campaign \
                 WHERE namespace = $1 AND name = $2 AND (archived_at IS NOT NULL OR retired_at IS NOT NULL) \
                 ORDER BY archived_at DESC NULLS FIRST LIMIT 1",
            )
            .bind(name.namespace())
            .bind(name.name())
            .fetch_optional(&mut *session)
            .await?;
            session.finish();
            row.map(|row| {
                Ok(EndedCampaign {
                    id: CampaignId(row.try_get("id")?),
                    archived: row.try_get("archived")?,
                })
            })
            .transpose()
        })
        .await
    }
}
