use std::collections::HashMap;

use campaign::{
    kafka::offsets::PastEnd,
    postgres::{
        consumed::{Consumption, Life},
        persist::{Advance, PersistError},
    },
};

use crate::shop::{Shop, TOPIC};

async fn advance(shop: &Shop, from: i64, to: i64, life: Life) -> Result<(), PersistError> {
    let advance = Advance {
        partition: 0,
        from,
        to,
        life,
    };
    shop.database.advance(TOPIC, &[advance], &[]).await
}

async fn consumption(shop: &Shop) -> Consumption {
    shop.database.consumption(TOPIC).await.unwrap()
}

fn found(consumed: i64) -> PastEnd {
    PastEnd {
        partition: 0,
        consumed,
        end: 0,
    }
}

/// Who has read the old log from 0 on, and moved nothing yet, must not move the new one.
#[tokio::test]
async fn an_offset_of_another_life_is_not_moved_though_it_is_the_same() {
    let shop = Shop::open(5).await;
    let before = consumption(&shop).await;
    assert_eq!(before, Consumption::default());
    shop.database
        .advance(
            TOPIC,
            &[Advance {
                partition: 1,
                from: 0,
                to: 10,
                life: before.life,
            }],
            &[],
        )
        .await
        .unwrap();
    let shortened = PastEnd {
        partition: 1,
        ..found(10)
    };
    assert!(shop.database.report_shortened(TOPIC, shortened).await.unwrap());
    assert!(shop.database.consume_anew(TOPIC).await.unwrap());

    let after = consumption(&shop).await;
    assert_ne!(after.life, before.life);
    assert_eq!(after.next, HashMap::new());
    let refused = advance(&shop, 0, 8, before.life).await;
    assert!(
        matches!(
            refused,
            Err(PersistError::Moved {
                partition: 0,
                stored: 0,
                ..
            })
        ),
        "{refused:?}"
    );
    advance(&shop, 0, 3, after.life).await.unwrap();
    assert_eq!(consumption(&shop).await.next_of(0), 3);
    let another = shop.database.consumption("another").await.unwrap();
    assert_eq!(another.life, before.life, "each topic for itself");
}

/// Two workers find it at once, or one wakes that found it before: it begins anew once.
#[tokio::test]
async fn a_finding_of_before_a_topic_began_anew_says_nothing_any_more() {
    let shop = Shop::open(5).await;
    let anew = async |consumed| {
        let found = found(consumed);
        shop.database.consume_from_beginning(TOPIC, found).await.unwrap()
    };
    assert!(!anew(10).await, "nothing is consumed");
    advance(&shop, 0, 10, Life::default()).await.unwrap();
    let (one, other) = tokio::join!(anew(10), anew(10));
    assert!(one != other, "once: {one} and {other}");
    let begun = consumption(&shop).await;
    assert_eq!((begun.life, begun.next_of(0)), (Life(1), 0));
    advance(&shop, 0, 4, begun.life).await.unwrap();
    assert!(!anew(10).await);
    assert_eq!(consumption(&shop).await.next_of(0), 4);
}
