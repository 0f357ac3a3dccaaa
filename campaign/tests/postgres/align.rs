//! Changes of terms, which Redis and Postgres get one after the other: what may happen between the two.

use std::time::Duration;

use campaign::{
    align::Aligner,
    identity::{Instance, RequestId},
    postgres::campaign::CampaignTerms,
    rebuild::Rebuilder,
    redis::state::{Refusal, ReserveAnswer, StateAnswer},
};
use sqlx::{Connection, PgConnection};
use testkit::{
    eventually::eventually,
    installation::{TestInstallation, campaign_name},
};

use crate::shop::{terms, user};

#[tokio::test]
async fn a_shrink_that_opens_the_door_opens_it_only_once_postgres_says_so() {
    let on = TestInstallation::start().await.unwrap();
    let rebuilder = Rebuilder::new(
        on.redis().await.unwrap(),
        on.database().await.unwrap(),
        &on.kafka,
        on.naming.clone(),
        Duration::ZERO,
    );
    let aligner = Aligner::new(rebuilder.unwrap());
    let name = campaign_name();
    let paused = CampaignTerms {
        paused: true,
        ..terms(10)
    };
    let row = aligner.apply(&name, &paused).await.unwrap().campaign;
    let claim = async || {
        let batch = Instance::random().batch(1);
        let claims = [(user("u"), RequestId::fresh())];
        aligner.state.reserve(&name, &batch, &claims).await.unwrap()
    };

    // The row is held, so the shrink stops between its two halves.
    let mut holder = PgConnection::connect(&on.postgres.postgres_url).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM campaign WHERE id = $1 FOR UPDATE")
        .bind(row.id.0)
        .execute(&mut *held)
        .await
        .unwrap();
    let wanted = terms(5);
    let between = async {
        eventually(Duration::from_secs(4), "Redis is told ahead", async || {
            match aligner.state.state(&name).await.unwrap() {
                StateAnswer::Present(numbers) => (numbers.quantity, numbers.revision) == (5, row.revision + 1),
                other => panic!("{other:?}"),
            }
        })
        .await;
        // Whoever deletes it now finds this row paused.
        assert_eq!(claim().await, ReserveAnswer::Refused(Refusal::Paused));
        held.rollback().await.unwrap();
    };
    let (applied, ()) = tokio::join!(aligner.apply(&name, &wanted), between);
    assert_eq!(applied.unwrap().campaign.terms, wanted);
    assert!(matches!(claim().await, ReserveAnswer::Judged(_)));
}
