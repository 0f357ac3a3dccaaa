//! Reads what the servers hold at the end, and what the audit finds in it.

use std::collections::BTreeMap;

use campaign::{
    identity::CampaignId,
    name::CampaignName,
    postgres::database::{Database, DatabaseError},
};
use coupon::{
    audit::{self, AuditError, Sources},
    connections::InstallationArguments,
};

use crate::checker::{Held, Row, Violation};

/// Rows of one page.
const PAGE: i64 = 5_000;

/// What all live campaigns hold, and the audit's findings as violations.
pub async fn read(
    arguments: &InstallationArguments,
    database: &Database,
) -> Result<(BTreeMap<CampaignName, Held>, Vec<Violation>), AuditError> {
    let sources = Sources::connect(arguments).await?;
    let campaigns = sources.campaigns(None).await?;
    let audit = audit::quiet(&sources, &campaigns, None).await?;
    let findings = audit.findings.into_iter().map(|finding| Violation {
        kind: format!("audit-{}", finding.kind),
        subject: finding
            .campaign
            .as_ref()
            .map_or_else(|| "the installation".to_owned(), ToString::to_string),
        evidence: std::iter::once(finding.kind.meaning().to_owned())
            .chain(finding.ids)
            .collect(),
    });
    let findings = findings.collect();
    let mut held = BTreeMap::new();
    for campaign in campaigns {
        let rows = rows(database, campaign.id).await.map_err(AuditError::Postgres)?;
        held.insert(
            campaign.name,
            Held {
                quantity: campaign.terms.quantity,
                parked: campaign.parked,
                rows,
            },
        );
    }
    Ok((held, findings))
}

async fn rows(database: &Database, campaign: CampaignId) -> Result<Vec<Row>, DatabaseError> {
    let mut snapshot = database.audit_snapshot().await?;
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let after = rows.last().map(|row| (row.user.clone(), row.request));
        let from = after.as_ref().map(|(user, request)| (user, *request));
        let page = snapshot.coupons(campaign, from, PAGE).await?;
        if page.is_empty() {
            break;
        }
        rows.extend(page.into_iter().map(|coupon| Row {
            user: coupon.user,
            request: coupon.request,
            status: coupon.status,
            slot_returned: coupon.slot_returned,
        }));
    }
    snapshot.close().await?;
    Ok(rows)
}
