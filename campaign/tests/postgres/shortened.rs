use std::collections::HashMap;

use campaign::{
    kafka::offsets::PastEnd,
    postgres::{
        batch::{Abandon, BatchOutcome},
        persist::Advance,
        shortened::TopicStanding,
    },
};

use crate::{
    abandon::abandon,
    shop::{Shop, TOPIC},
};

const FOUND: PastEnd = PastEnd {
    partition: 0,
    consumed: 10,
    end: 3,
};

async fn consume(shop: &Shop, to: i64) {
    let advance = Advance {
        partition: 0,
        from: 0,
        to,
        life: shop.database.consumption(TOPIC).await.unwrap().life,
    };
    shop.database.advance(TOPIC, &[advance], &[]).await.unwrap();
}

async fn standing(shop: &Shop) -> TopicStanding {
    shop.database.topic_standing(TOPIC).await.unwrap()
}

#[tokio::test]
async fn a_finding_stands_until_it_is_accepted_and_counts_only_for_the_offsets_it_speaks_of() {
    let shop = Shop::open(5).await;
    let report = async || shop.database.report_shortened(TOPIC, FOUND).await.unwrap();
    assert!(!report().await, "nothing is consumed");
    consume(&shop, 10).await;
    assert!(
        !shop.database.consume_anew(TOPIC).await.unwrap(),
        "nobody has found anything"
    );
    assert!(report().await);
    assert!(!report().await, "it is said already");
    let shortened = Some(FOUND);
    let mut consumed = HashMap::from([(0, 10)]);
    assert_eq!(standing(&shop).await, TopicStanding { shortened, consumed });

    assert!(shop.database.consume_anew(TOPIC).await.unwrap());
    consumed = HashMap::new();
    assert_eq!(standing(&shop).await, TopicStanding { shortened, consumed });
    shop.database.accept_shortened(TOPIC).await.unwrap();
    assert_eq!(standing(&shop).await, TopicStanding::default());
    assert!(!report().await, "it was found before the topic was accepted");
}

#[tokio::test]
async fn offsets_are_forgotten_once_a_finding_however_often_it_is_tried_to_accept_it() {
    let shop = Shop::open(5).await;
    let anew = async || assert!(shop.database.consume_anew(TOPIC).await.unwrap());
    consume(&shop, 10).await;
    assert!(shop.database.report_shortened(TOPIC, FOUND).await.unwrap());
    anew().await;
    // Workers have gone on in the new log when it is tried again.
    consume(&shop, 4).await;
    anew().await;
    let mut expected = TopicStanding {
        shortened: Some(FOUND),
        consumed: HashMap::from([(0, 4)]),
    };
    assert_eq!(standing(&shop).await, expected);
    assert!(
        !shop.database.report_shortened(TOPIC, FOUND).await.unwrap(),
        "of before"
    );

    // It is made anew a second time before the first one is accepted.
    let again = PastEnd {
        partition: 0,
        consumed: 4,
        end: 1,
    };
    assert!(shop.database.report_shortened(TOPIC, again).await.unwrap());
    assert!(
        !shop.database.report_shortened(TOPIC, again).await.unwrap(),
        "it is said already"
    );
    anew().await;
    expected = TopicStanding {
        shortened: Some(again),
        consumed: HashMap::new(),
    };
    assert_eq!(standing(&shop).await, expected);
}

#[tokio::test]
async fn nothing_is_abandoned_while_the_topic_is_shortened() {
    let shop = Shop::open(5).await;
    let (record, decided) = (shop.record(&["a"]), shop.record(&["b"]));
    consume(&shop, 10).await;
    shop.persist(std::slice::from_ref(&decided)).await;
    shop.database.report_shortened(TOPIC, FOUND).await.unwrap();
    assert_eq!(abandon(&shop, &record, &[(0, 10)]).await, Abandon::TopicShortened);
    let outcomes = shop
        .database
        .decided_batches(
            shop.campaign.id,
            &[record.record.batch.clone(), decided.record.batch.clone()],
        )
        .await
        .unwrap();
    assert_eq!(
        outcomes,
        HashMap::from([(decided.record.batch.clone(), BatchOutcome::Stored)])
    );
    shop.database.consume_anew(TOPIC).await.unwrap();
    shop.database.accept_shortened(TOPIC).await.unwrap();
    assert_eq!(abandon(&shop, &record, &[]).await, Abandon::Abandoned);
}
