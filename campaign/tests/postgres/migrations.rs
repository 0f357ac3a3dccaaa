use campaign::postgres::database::{Database, DatabaseError};

use crate::shop::server;

async fn connect_to_empty() -> (Database, String) {
    let fresh = server().await.empty_database().await.unwrap();
    (Database::connect(&fresh.settings).await.unwrap(), fresh.name)
}

#[tokio::test]
async fn a_database_without_the_migrations_is_refused() {
    let (database, _) = connect_to_empty().await;
    let error = database.check_migrated().await.unwrap_err();
    assert!(matches!(error, DatabaseError::NotMigrated(_)), "{error}");
    assert!(error.to_string().contains("coupon migrate"), "{error}");
}

#[tokio::test]
async fn migrating_twice_and_at_once_is_safe() {
    let (database, _) = connect_to_empty().await;
    let all = futures::future::join_all((0..4).map(|_| database.migrate())).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    database.migrate().await.unwrap();
    database.check_migrated().await.unwrap();
    database.ping().await.unwrap();
}

#[tokio::test]
async fn an_older_schema_is_refused_and_a_newer_one_accepted() {
    let (database, name) = connect_to_empty().await;
    database.migrate().await.unwrap();
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (999999, 'of the next release', true, 'x', 1)";
    server().await.execute(&name, newer).await.unwrap();
    database.check_migrated().await.unwrap();
    database.migrate().await.unwrap();

    let older = "DELETE FROM _sqlx_migrations WHERE version = 1";
    server().await.execute(&name, older).await.unwrap();
    let error = database.check_migrated().await.unwrap_err();
    assert!(error.to_string().contains("0001 campaigns"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let fresh = server().await.empty_database().await.unwrap();
    let mut settings = fresh.settings;
    settings.postgres_url = "postgres://coupon@127.0.0.1:1/none".to_owned();
    let error = Database::connect(&settings).await.unwrap_err();
    assert!(matches!(error, DatabaseError::Unavailable { .. }), "{error}");
}
