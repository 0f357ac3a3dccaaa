//! Accepting a topic of claims that ends before what was consumed of it.

use std::{collections::HashMap, time::Duration};

use campaign::{
    kafka::offsets::PastEnd,
    postgres::{database::Database, persist::Advance},
    rebuild::Rebuilder,
    topic_recovery::accept_topic,
};
use testkit::installation::{TestInstallation, campaign_name};

use crate::shop::terms;

async fn consume(database: &Database, topic: &str, to: i64) {
    let advance = Advance {
        partition: 0,
        from: 0,
        to,
        life: database.consumption(topic).await.unwrap().life,
    };
    database.advance(topic, &[advance], &[]).await.unwrap();
}

#[tokio::test]
async fn a_topic_that_is_made_anew_once_more_while_it_is_accepted_is_accepted_all_the_same() {
    let on = TestInstallation::start().await.unwrap();
    let (database, topic) = (on.database().await.unwrap(), on.naming.requests_topic());
    let name = campaign_name();
    database.create_campaign(&name, &terms(10)).await.unwrap();
    let rebuilder = Rebuilder::new(
        on.redis().await.unwrap(),
        database.clone(),
        &on.kafka,
        on.naming.clone(),
        Duration::ZERO,
    )
    .unwrap();
    assert!(accept_topic(&rebuilder).await.unwrap().is_none(), "it is whole");

    // Nobody but the command itself has looked: the topic is empty.
    consume(&database, &topic, 10).await;
    assert_eq!(accept_topic(&rebuilder).await.unwrap(), Some(vec![name.clone()]));
    assert_eq!(database.consumed(&topic).await.unwrap(), HashMap::new());
    assert_eq!(database.shortened_topic(&topic).await.unwrap(), None);

    // A first try went as far as this; then workers read two records of a topic that is empty again.
    consume(&database, &topic, 10).await;
    let found = PastEnd {
        partition: 0,
        consumed: 10,
        end: 0,
    };
    assert!(database.report_shortened(&topic, found).await.unwrap());
    assert!(database.consume_anew(&topic).await.unwrap());
    consume(&database, &topic, 2).await;
    assert_eq!(accept_topic(&rebuilder).await.unwrap(), Some(vec![name]));
    assert_eq!(database.shortened_topic(&topic).await.unwrap(), None);
}
