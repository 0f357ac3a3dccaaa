//! The topic of claims is deleted and made anew in the middle of a burst: what it held and nobody had read is lost.

use campaign::{kafka::topics, topic_recovery::accept_topic};
use futures::{StreamExt, stream};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    client::DefaultClientContext,
};
use testkit::eventually::eventually;
use tokio::sync::watch;

use crate::chain::{Chain, LIMIT, how_many, successes, users};

/// How far the accident has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    NotYet,
    Anew,
    Found,
}

/// So many claims come at most before the topic is made anew, and so many more before that is found: something is left
/// to sell.
const EACH_PHASE: usize = 1_500;

/// A client that is connected: what it is told to do, it does at once.
async fn admin(chain: &Chain) -> AdminClient<DefaultClientContext> {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &chain.on.kafka.kafka_brokers)
        .create()
        .unwrap();
    let broker = [ResourceSpecifier::Broker(1)];
    admin.describe_configs(&broker, &AdminOptions::new()).await.unwrap();
    admin
}

async fn make_anew(chain: &Chain, admin: &AdminClient<DefaultClientContext>) {
    let topic = chain.on.naming.requests_topic();
    admin.delete_topics(&[&topic], &AdminOptions::new()).await.unwrap();
    let reader = &chain.aligner.rebuilder.reader;
    eventually(LIMIT, "the topic is there again", async || {
        topics::create(&chain.on.kafka, &chain.on.naming, 1).await.ok()?;
        (reader.watermarks(&topic).await.ok()?.len() == topics::PARTITIONS as usize).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_anew_shuts_every_door_and_sells_again_once_it_is_accepted() {
    const QUANTITY: i64 = 5_000;
    let chain = Chain::open(QUANTITY).await;
    let doors = [chain.intake().await, chain.intake().await];
    let _worker = chain.worker().await;
    let before = doors[0].burst(users(0..500), 20).await;
    assert_eq!(how_many(&before, "SUCCESS"), 500);
    chain.settles_with(500).await;

    let topic = chain.on.naming.requests_topic();
    let admin = admin(&chain).await;
    let phase = watch::Sender::new(Phase::NotYet);
    let claims = stream::iter(users(500..100_000).enumerate())
        .take_while(|_| std::future::ready(*phase.borrow() < Phase::Found))
        .map(|(i, user)| {
            let (door, mut phase) = (&doors[i % 2], phase.subscribe());
            async move {
                let at_least = match i / EACH_PHASE {
                    0 => Phase::NotYet,
                    1 => Phase::Anew,
                    _ => Phase::Found,
                };
                let began_after = *phase.wait_for(|&phase| phase >= at_least).await.unwrap() > Phase::NotYet;
                let told = door.claim(&user).await;
                (began_after, (user, told))
            }
        })
        .buffer_unordered(40)
        .collect::<Vec<_>>();
    let accident = async {
        eventually(LIMIT, "the burst is on its way", async || {
            chain.rows().await.len() > 600
        })
        .await;
        make_anew(&chain, &admin).await;
        phase.send_replace(Phase::Anew);
        eventually(LIMIT, "somebody has found it", async || {
            chain.database.shortened_topic(&topic).await.ok()?
        })
        .await;
        for door in &doors {
            eventually(LIMIT, "the door is shut", async || {
                let metrics = reqwest::get(format!("{}/metrics", door.internal_url)).await.ok()?;
                let text = metrics.text().await.ok()?;
                text.lines()
                    .any(|line| line == "coupon_intake_topic_shortened 1")
                    .then_some(())
            })
            .await;
        }
        phase.send_replace(Phase::Found);
    };
    let (told, ()) = tokio::join!(claims, accident);

    // Nobody is told SUCCESS any more, and nothing is reserved, not even by a probe.
    let taken = chain.numbers().await.taken;
    for door in &doors {
        let refused = door.burst((0..50).map(|i| format!("refused-{i}")), 10).await;
        let said_no = refused
            .iter()
            .filter(|(_, told)| told.is("COUPON_ISSUE_KAFKA_ERROR") && !told.unknown);
        assert_eq!(said_no.count(), 50, "{refused:?}");
    }
    assert!(
        chain.numbers().await.taken <= taken,
        "slots were taken behind a shut door"
    );

    assert!(accept_topic(&chain.aligner.rebuilder).await.unwrap().is_some());
    for (i, door) in doors.iter().enumerate() {
        assert!(
            door.claim_until_answered(&format!("first-{i}")).await.is("SUCCESS"),
            "open again"
        );
    }
    let rest = doors[1].burst(users(200_000..206_000), 50).await;
    chain.settles_with(QUANTITY).await;
    chain.assert_conserved().await;
    let rows = chain.rows().await;
    let since: Vec<_> = told
        .into_iter()
        .filter(|(began_after, _)| *began_after)
        .map(|(_, told)| told)
        .collect();
    for kept in [&before, &since, &rest] {
        let lost: Vec<_> = successes(kept)
            .into_iter()
            .filter(|success| !rows.contains(success))
            .collect();
        assert!(lost.is_empty(), "a SUCCESS was taken back: {lost:?}");
    }
    assert!(
        accept_topic(&chain.aligner.rebuilder).await.unwrap().is_none(),
        "nothing is left to accept"
    );
}
