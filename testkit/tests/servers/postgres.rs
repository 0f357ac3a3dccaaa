use sqlx::{Connection, PgConnection};
use testkit::postgres::PostgresServer;

async fn count(url: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("SELECT count(*) FROM t")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn keeps_its_data_when_killed_and_loses_later_commits_when_an_older_copy_is_put_back() {
    let mut server = PostgresServer::start().await.unwrap();
    let database = server.empty_database().await.unwrap().name;
    let url = server.url(&database);
    server
        .execute(&database, "CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
        .await
        .unwrap();
    let watching = PgConnection::connect(&url).await.unwrap();
    let snapshot = server.snapshot().await.unwrap();
    watching.close().await.expect("the copy is made of a running server");
    server.execute(&database, "INSERT INTO t VALUES (2)").await.unwrap();

    let open_session = PgConnection::connect(&url).await.unwrap();
    server.kill();
    server.restart().await.unwrap();
    drop(open_session);
    assert_eq!(count(&url).await, 2);

    server.restore(&snapshot).await.unwrap();
    assert_eq!(count(&url).await, 1);
}
