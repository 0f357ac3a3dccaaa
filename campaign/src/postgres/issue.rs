//! New coupons, with their events.

use std::collections::HashSet;

use sqlx::{Postgres, Row, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::{campaign::CampaignRow, database::Session};
use crate::{
    event::EventType,
    identity::{RequestId, Reservation, UserId},
};

/// A claim of a decided record.
#[derive(Clone, Debug)]
pub(super) struct Claim<'a> {
    /// Who claims.
    pub(super) user: &'a UserId,
    /// Its request.
    pub(super) request: RequestId,
    /// Its attempt.
    pub(super) reservation: Reservation,
}

/// Crockford's base32: no I, L, O and U, which people read as something else.
const CODE_ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// 5 bits each: 65 random bits, so that a code cannot be guessed.
const CODE_LENGTH: u32 = 13;

/// What is shown at the till: the prefix, a dash and 13 characters (without a prefix: without the dash).
fn code(prefix: &str, random: u128) -> String {
    let digits = (0..CODE_LENGTH).map(|i| char::from(CODE_ALPHABET[(random >> (5 * i)) as usize & 31]));
    let dash = if prefix.is_empty() { "" } else { "-" };
    prefix.chars().chain(dash.chars()).chain(digits).collect()
}

/// Inserts a coupon and its `COUPON_ISSUED` for each claim whose user, request and (new, random) code are free; answers
/// the requests that were inserted. The caller has the campaign's row locked and knows that there is room.
pub(super) async fn insert_coupons(
    session: &mut Session,
    campaign: &CampaignRow,
    claims: &[Claim<'_>],
) -> Result<HashSet<Uuid>, sqlx::Error> {
    if claims.is_empty() {
        return Ok(HashSet::new());
    }
    // Conflicts are for bad days. Looking for them costs a quarter of the throughput, so first try without.
    sqlx::raw_sql("SAVEPOINT coupons").execute(&mut **session).await?;
    match insert_rows(sqlx::query(INSERT_FREE), campaign, claims)
        .execute(&mut **session)
        .await
    {
        Ok(_) => {
            let ids: Vec<Uuid> = claims.iter().map(|claim| claim.request.0).collect();
            let users: Vec<&str> = claims.iter().map(|claim| claim.user.as_str()).collect();
            insert_issued_events(session, campaign, &ids, &users).await?;
            return Ok(ids.into_iter().collect());
        }
        Err(error)
            if error
                .as_database_error()
                .is_some_and(|error| error.is_unique_violation()) => {}
        Err(error) => return Err(error),
    }
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT coupons")
        .execute(&mut **session)
        .await?;
    let rows = insert_rows(sqlx::query(INSERT_SOME), campaign, claims)
        .fetch_all(&mut **session)
        .await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
    let users: Vec<&str> = rows
        .iter()
        .map(|row| row.try_get("user_id"))
        .collect::<Result<_, _>>()?;
    insert_issued_events(session, campaign, &ids, &users).await?;
    Ok(ids.into_iter().collect())
}

macro_rules! insert_coupons {
    ($conflict:literal) => {
        // The statement's time, not the transaction's: this one began before it waited for the lock.
        concat!(
            "INSERT INTO coupon (id, campaign_id, user_id, code, reservation, issued_at, valid_until) \
             SELECT id, $1, user_id, code, reservation, statement_timestamp(), \
                    statement_timestamp() + $2::bigint * interval '1 millisecond' \
             FROM unnest($3::uuid[], $4::text[], $5::text[], $6::text[]) AS c(id, user_id, code, reservation)",
            $conflict
        )
    };
}

const INSERT_FREE: &str = insert_coupons!("");
const INSERT_SOME: &str = insert_coupons!(" ON CONFLICT DO NOTHING RETURNING id, user_id");

fn insert_rows<'q>(
    query: Query<'q, Postgres, PgArguments>,
    campaign: &CampaignRow,
    claims: &[Claim<'_>],
) -> Query<'q, Postgres, PgArguments> {
    let texts = |text: &dyn Fn(&Claim<'_>) -> String| claims.iter().map(text).collect::<Vec<_>>();
    query
        .bind(campaign.id.0)
        .bind(campaign.terms.valid_for_ms)
        .bind(claims.iter().map(|claim| claim.request.0).collect::<Vec<_>>())
        .bind(texts(&|claim| claim.user.to_string()))
        .bind(texts(&|_| code(&campaign.terms.code_prefix, rand::random())))
        .bind(texts(&|claim| claim.reservation.to_string()))
}

/// A statement of its own: inserting from the other one's result through a CTE costs a fifth of the throughput.
async fn insert_issued_events(
    session: &mut Session,
    campaign: &CampaignRow,
    coupons: &[Uuid],
    users: &[&str],
) -> Result<(), sqlx::Error> {
    let Some(first) = coupons.first() else {
        return Ok(());
    };
    sqlx::query(
        "INSERT INTO outbox (type, coupon_id, campaign_id, campaign, user_id, occurred_at) \
         SELECT $1, coupon_id, $2, $3, user_id, (SELECT issued_at FROM coupon WHERE id = $4) \
         FROM unnest($5::uuid[], $6::text[]) AS e(coupon_id, user_id)",
    )
    .bind(EventType::Issued.as_str())
    .bind(campaign.id.0)
    .bind(campaign.name.to_string())
    .bind(first)
    .bind(coupons)
    .bind(users)
    .execute(&mut **session)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_the_prefix_and_13_unambiguous_characters() {
        assert_eq!(code("BF26", 0), "BF26-0000000000000");
        assert_eq!(code("BF26", 33), "BF26-1100000000000");
        assert_eq!(code("", u128::MAX), "ZZZZZZZZZZZZZ");
        assert!(!CODE_ALPHABET.iter().any(|b| b"ILOU".contains(b)));
    }

    #[test]
    fn every_one_of_65_bits_counts() {
        let codes: HashSet<String> = (0..65).map(|bit| code("", 1 << bit)).chain([code("", 0)]).collect();
        assert_eq!(codes.len(), 66);
    }
}
