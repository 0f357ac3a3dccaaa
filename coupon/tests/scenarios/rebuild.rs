//! The state is lost.

use std::collections::BTreeSet;

use campaign::{
    kafka::producer::{Delivery, Outgoing, Producer},
    postgres::{consumed::Life, persist::Advance},
    rebuild::{Force, RebuildError, Rebuilt},
    redis::state::StateAnswer,
};
use jiff::Timestamp;
use testkit::eventually::eventually;
use tokio::sync::watch;

use crate::chain::{Chain, LIMIT, at_once, how_many, successes, users};

/// Deletes the campaign's keys, as a flush would.
pub async fn lose_state(chain: &Chain) {
    let keys = chain.on.naming.state(&chain.campaign);
    lose_keys(
        chain,
        &[keys.meta, keys.occupied, keys.users, keys.pending, keys.pending_claims],
    )
    .await;
}

async fn lose_keys(chain: &Chain, keys: &[String]) {
    let client = redis::Client::open(chain.on.redis.redis_urls[0].as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("DEL").arg(keys).exec_async(&mut connection).await.unwrap();
}

/// Whatever is missing is not zero.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_has_lost_one_of_its_keys_sells_nothing_twice() {
    let chain = Chain::open(2).await;
    let door = chain.intake().await;
    let _worker = chain.worker().await;
    let sold = door.burst(users(0..2), 2).await;
    assert_eq!(how_many(&sold, "SUCCESS"), 2);
    chain.settles_with(2).await;
    let keys = chain.on.naming.state(&chain.campaign);
    for (i, key) in [keys.occupied, keys.users, keys.meta].into_iter().enumerate() {
        lose_keys(&chain, &[key]).await;
        let user = format!("late-{i}");
        let told = door.claim_until_answered(&user).await;
        let again = door.claim_until_answered(&sold[0].0).await;
        chain.assert_kept(&[(&user, &told), (&sold[0].0, &again)]).await;
        assert!(told.is("SOLD_OUT") && again.is("DUPLICATE"), "{told:?} {again:?}");
    }
    chain.settles_with(2).await;
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_are_still_in_kafka_keep_their_slots() {
    let chain = Chain::open(100).await;
    let door = chain.intake().await;
    let worker = chain.worker().await;
    let rows = door.burst(users(0..20), 20).await;
    chain.settles_with(20).await;
    worker.stop().await;
    let waiting = door.burst(users(20..60), 40).await;
    assert_eq!(how_many(&waiting, "SUCCESS"), 40);

    lose_state(&chain).await;
    eventually(LIMIT, "an intake finds it and it is rebuilt", async || {
        door.claim("user-0").await.is("DUPLICATE")
    })
    .await;
    let numbers = chain.numbers().await;
    let late = door.burst(users(100..200), 100).await;
    let sold = how_many(&late, "SUCCESS");
    assert_eq!(sold, 40, "{} of 100 coupons are sold", 60 + sold);
    assert_eq!((numbers.taken, numbers.pending), (60, 40));

    let _worker = chain.worker().await;
    chain.settles_with(100).await;
    let told: BTreeSet<_> = [&rows, &waiting, &late]
        .into_iter()
        .flat_map(|told| successes(told))
        .collect();
    assert_eq!(chain.rows().await, told);
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_lost_in_the_middle_of_a_burst_comes_back_without_a_loss() {
    let chain = Chain::open(1_000).await;
    let door = chain.intake().await;
    let _worker = chain.worker().await;
    // Most come after a loss, so that it is in the middle however fast the door is.
    let (coming, _) = watch::channel(200);
    // Whoever is refused while it is rebuilt asks again.
    let claims = at_once(1_500, |i| {
        let (door, mut coming) = (&door, coming.subscribe());
        async move {
            coming.wait_for(|&coming| i < coming).await.unwrap();
            let user = format!("user-{i}");
            let told = door.claim_until_answered(&user).await;
            (user, told)
        }
    });
    let flushes = async {
        for (taken, come) in [(100, 800), (400, 1_500)] {
            eventually(LIMIT, "the burst is under way", async || {
                matches!(chain.state.state(&chain.campaign).await, Ok(StateAnswer::Present(state)) if state.taken >= taken)
            })
            .await;
            lose_state(&chain).await;
            coming.send_replace(come);
        }
    };
    let (told, ()) = tokio::join!(claims, flushes);
    assert_eq!((how_many(&told, "SUCCESS"), how_many(&told, "SOLD_OUT")), (1_000, 500));
    chain.settles_with(1_000).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
    let epoch = chain.numbers().await.epoch;
    assert_eq!(
        chain.count("SELECT count(DISTINCT epoch) FROM epoch_cut").await,
        3,
        "twice rebuilt, now at {epoch}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_was_taken_away_and_applied_again_goes_on() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..30), 30).await;
    assert_eq!(how_many(&told, "SUCCESS"), 30);
    // A pruned manifest or a restore: the keys go, the rows and the claims stay.
    lose_state(&chain).await;
    chain.apply(&crate::chain::terms(50)).await;
    let again = door.burst(users(0..30), 30).await;
    assert_eq!(how_many(&again, "DUPLICATE"), 30, "holders stay holders");
    let _worker = chain.worker().await;
    chain.settles_with(30).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_campaign_leaves_its_name_to_a_new_one() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let old = door.burst(users(0..30), 30).await;
    assert_eq!(how_many(&old, "SUCCESS"), 30);
    let row = chain.database.campaign(&chain.campaign).await.unwrap().unwrap();
    let old_id = row.id;
    chain.database.archive_campaign(old_id, row.revision).await.unwrap();
    chain.state.remove(&chain.campaign, old_id).await.unwrap();

    let new = chain.apply(&crate::chain::terms(50)).await;
    assert_ne!(new.id, old_id);
    let _worker = chain.worker().await;
    eventually(LIMIT, "the old claims are decided", async || {
        chain
            .count("SELECT count(*) FROM rejection WHERE reason = 'CAMPAIGN_GONE'")
            .await
            == 30
    })
    .await;
    assert_eq!(chain.numbers().await.taken, 0, "the new stock is untouched");
    let told = eventually(LIMIT, "the door knows the new campaign", async || {
        let told = door.claim("user-0").await;
        told.is("SUCCESS").then_some(told)
    })
    .await;
    chain.settles_with(1).await;
    assert_eq!(
        chain.rows().await,
        BTreeSet::from([("user-0".to_owned(), told.request.unwrap())])
    );
}

/// Other campaigns' records are consumed while the rebuild waits for the campaign's row: what is consumed lies past the
/// end offsets then, and rightly.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_is_not_disturbed_by_workers_that_go_on() {
    let chain = Chain::open(50).await;
    let row = chain.database.campaign(&chain.campaign).await.unwrap().unwrap();
    let mut other = chain.pool.begin().await.unwrap();
    let rebuild = chain.aligner.rebuilder.rebuild(&chain.campaign, Force::Always);
    let goes_on = async {
        eventually(LIMIT, "the epoch is raised", async || {
            matches!(
                chain.state.state(&chain.campaign).await,
                Ok(StateAnswer::Rebuilding { .. })
            )
        })
        .await;
        sqlx::query("SELECT 1 FROM campaign WHERE id = $1 FOR UPDATE")
            .bind(row.id.0)
            .execute(&mut *other)
            .await
            .unwrap();
        eventually(LIMIT, "the rebuild waits for the row", async || {
            chain.waits_for_a_lock("%FOR UPDATE%").await
        })
        .await;
        let topic = chain.on.naming.requests_topic();
        let producer = Producer::start(&chain.on.kafka, LIMIT).unwrap();
        let sent = producer.send(&Outgoing {
            topic: &topic,
            value: b"{",
            ..Outgoing::default()
        });
        let Delivery::Acknowledged { partition, offset } = sent.await.unwrap() else {
            panic!("not acknowledged");
        };
        let advance = Advance {
            partition,
            from: 0,
            to: offset + 1,
            life: Life::default(),
        };
        chain.database.advance(&topic, &[advance], &[]).await.unwrap();
        other.commit().await.unwrap();
    };
    let (rebuilt, ()) = tokio::join!(rebuild, goes_on);
    assert!(matches!(rebuilt.unwrap(), Rebuilt::Done { .. }));
}

/// A topic that was made anew is shorter than what was consumed: better shut than wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_ends_before_what_was_consumed_stops_the_rebuild() {
    let chain = Chain::open(50).await;
    let topic = chain.on.naming.requests_topic();
    let advance = Advance {
        partition: 3,
        from: 0,
        to: 1_000_000,
        life: Life::default(),
    };
    chain.database.advance(&topic, &[advance], &[]).await.unwrap();
    let rebuilt = chain.aligner.rebuilder.rebuild(&chain.campaign, Force::Always).await;
    assert!(
        matches!(rebuilt, Err(RebuildError::AheadOfKafka { partition: 3, .. })),
        "{rebuilt:?}"
    );
}

/// Postgres was put back to before the first rebuild, and doors go on with the state that is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_epoch_with_a_state_waits_for_what_is_on_its_way() {
    let chain = Chain::open(50).await;
    let rebuilder = &chain.aligner.rebuilder;
    // Epochs are seconds at least: within the one of the state, the new epoch would not be newer.
    let rebuilt = eventually(LIMIT, "a later second", async || {
        sqlx::query("UPDATE campaign SET epoch = 0")
            .execute(&chain.pool)
            .await
            .unwrap();
        let rebuilt = rebuilder.rebuild(&chain.campaign, Force::IfMissing).await.unwrap();
        (rebuilt != Rebuilt::Superseded).then_some(rebuilt)
    })
    .await;
    assert!(
        matches!(rebuilt, Rebuilt::Done { took, .. } if took >= rebuilder.settle_after),
        "{rebuilt:?}"
    );
}

/// The claims of a closed campaign are still in Kafka, its state is gone: they keep their room.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_campaign_without_a_state_shrinks_to_no_less_than_what_is_in_kafka() {
    let chain = Chain::open(50).await;
    let door = chain.intake().await;
    let told = door.burst(users(0..20), 20).await;
    assert_eq!(how_many(&told, "SUCCESS"), 20);
    let mut closed = crate::chain::terms(50);
    closed.closes_at = Some(Timestamp::from_millisecond(Timestamp::now().as_millisecond() - 1_000).unwrap());
    chain.apply(&closed).await;
    lose_state(&chain).await;
    closed.quantity = 5;
    assert_eq!(chain.apply(&closed).await.terms.quantity, 20);
    let _worker = chain.worker().await;
    chain.settles_with(20).await;
    assert_eq!(chain.rows().await, successes(&told));
    chain.assert_conserved().await;
}
