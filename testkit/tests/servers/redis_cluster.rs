use std::time::Duration;

use campaign::settings::RedisMode;
use testkit::redis_cluster::RedisCluster;

async fn spread(urls: Vec<String>) -> redis::RedisResult<()> {
    let client = redis::cluster::ClusterClientBuilder::new(urls)
        .retries(0)
        .connection_timeout(Duration::from_secs(30))
        .response_timeout(Duration::from_secs(30))
        .build()?;
    let mut connection = client.get_async_connection().await?;
    for i in 0..100 {
        redis::cmd("SET")
            .arg(format!("key-{i}"))
            .arg(i)
            .exec_async(&mut connection)
            .await?;
    }
    Ok(())
}

async fn keys(cluster: &RedisCluster) -> Vec<usize> {
    let mut keys = Vec::new();
    for node in cluster.nodes() {
        let mut connection = node.connection().await.unwrap();
        keys.push(redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap());
    }
    keys
}

#[tokio::test]
async fn spreads_keys_over_three_primaries() {
    let cluster = RedisCluster::start().await.unwrap();
    assert_eq!(cluster.settings().redis_mode, RedisMode::Cluster);
    spread(cluster.settings().redis_urls).await.unwrap();
    let keys = keys(&cluster).await;
    assert_eq!(keys.iter().sum::<usize>(), 100);
    assert!(keys.iter().all(|&keys| keys > 0), "{keys:?}");
}

#[tokio::test]
async fn clients_that_follow_its_topology_stay_behind_the_proxies() {
    let (cluster, proxies) = RedisCluster::behind_proxies().await.unwrap();
    let first = vec![format!("redis://127.0.0.1:{}", proxies[0].port())];
    spread(first.clone()).await.unwrap();
    assert_eq!(keys(&cluster).await.iter().sum::<usize>(), 100);

    for proxy in &proxies[1..] {
        proxy.refuse();
    }
    spread(first).await.unwrap_err();
}
