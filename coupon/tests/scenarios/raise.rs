//! The quantity grows.

use testkit::eventually::eventually;

use crate::chain::{Chain, LIMIT, terms};

/// Whoever raises it is cut off before Postgres has it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sold_that_postgres_has_no_room_for_yet() {
    let chain = Chain::open(1).await;
    let door = chain.intake().await;
    let first = door.claim("first").await;
    assert!(first.is("SUCCESS"), "{first:?}");
    let mut other = chain.pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM campaign FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let cut_off = async {
        eventually(LIMIT, "it writes to Postgres", async || {
            chain.waits_for_a_lock("UPDATE campaign SET quantity%").await
        })
        .await;
        let second = door.claim("second").await;
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND query LIKE 'UPDATE campaign SET quantity%'";
        sqlx::query(cut).execute(&chain.pool).await.unwrap();
        second
    };
    let wanted = terms(2);
    let (applied, second) = tokio::join!(chain.aligner.apply(&chain.campaign, &wanted), cut_off);
    assert!(applied.is_err(), "{applied:?}");
    other.commit().await.unwrap();

    let _worker = chain.worker().await;
    chain.assert_kept(&[("first", &first), ("second", &second)]).await;
    assert!(second.is("SOLD_OUT"), "{second:?}");
    chain.apply(&wanted).await;
    assert!(door.claim("second").await.is("SUCCESS"));
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}
