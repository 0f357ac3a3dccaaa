use std::collections::HashSet;

use campaign::kafka::topics;
use testkit::{installation::TestInstallation, postgres::PostgresServer};

#[tokio::test]
async fn installations_share_servers_and_nothing_else() {
    let (a, b) = tokio::try_join!(TestInstallation::start(), TestInstallation::start()).unwrap();
    assert_ne!(a.installation.key_prefix, b.installation.key_prefix);
    assert_ne!(a.postgres.postgres_url, b.postgres.postgres_url);
    assert_eq!(a.kafka.kafka_brokers, b.kafka.kafka_brokers);
    for installation in [a, b] {
        topics::check(&installation.kafka, &installation.naming, true)
            .await
            .unwrap();
        installation.database().await.unwrap().check_migrated().await.unwrap();
    }
}

#[tokio::test]
async fn fresh_databases_are_made_beside_each_other() {
    let server = PostgresServer::shared().await.unwrap();
    let databases = futures::future::try_join_all((0..8).map(|_| server.fresh_database()))
        .await
        .unwrap();
    let names: HashSet<_> = databases.into_iter().map(|database| database.name).collect();
    assert_eq!(names.len(), 8);
}
