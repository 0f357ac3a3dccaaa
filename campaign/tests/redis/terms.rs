use campaign::redis::state::{Configuration, Configured};

use crate::fixture::{Fixture, configuration};

fn at(revision: i64, quantity: i64) -> Configuration {
    Configuration {
        revision,
        ..configuration(quantity)
    }
}

#[tokio::test]
async fn of_two_shrinks_of_the_same_row_one_is_refused() {
    let fixture = Fixture::shared().await.open(3).await;
    let (store, campaign) = (&fixture.store, &fixture.campaign);
    let set = |quantity| Configured::Set { quantity, taken: 0 };

    // Both have read revision 1. Postgres would take one quantity, and Redis keep the other one.
    assert_eq!(store.configure_ahead(campaign, &at(2, 1)).await.unwrap(), set(1));
    let other = store.configure_ahead(campaign, &at(2, 2)).await.unwrap();
    assert_eq!(other, Configured::Stale { revision: 2 });

    // Once Postgres has it, a round may set it again.
    assert_eq!(store.configure(campaign, &at(2, 1)).await.unwrap(), set(1));
    let older = store.configure(campaign, &at(1, 3)).await.unwrap();
    assert_eq!(older, Configured::Stale { revision: 2 });
    assert_eq!(store.configure_ahead(campaign, &at(3, 2)).await.unwrap(), set(2));
}
