//! Many rows at once, past the worker.

use campaign::postgres::campaign::CampaignRow;

use crate::chain::Chain;

/// Gives `count` users, `holder-1` and so on, a coupon in Postgres. The state knows nothing of them.
pub async fn add_holders(chain: &Chain, count: i64) -> CampaignRow {
    let row = chain.database.campaign(&chain.campaign).await.unwrap().unwrap();
    sqlx::query(
        "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at)
         SELECT gen_random_uuid(), $1, 'holder-' || i, 'C' || i, 'aaaaaaaa-' || i || '.0', now()
         FROM generate_series(1, $2) AS i",
    )
    .bind(row.id.0)
    .bind(count)
    .execute(&chain.pool)
    .await
    .unwrap();
    sqlx::query("UPDATE campaign SET issued = issued + $2 WHERE id = $1")
        .bind(row.id.0)
        .bind(count)
        .execute(&chain.pool)
        .await
        .unwrap();
    row
}
