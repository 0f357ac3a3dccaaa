use coupon::audit::{self, FindingKind, Sources};

use crate::stage::{Stage, kinds, servers};

#[tokio::test(flavor = "multi_thread")]
async fn a_settled_campaign_is_clean_and_balances() {
    let stage = Stage::settled().await;
    let audit = stage.audit().await;
    assert!(audit.is_clean(), "{audit}");
    let report = &audit.campaigns[0];
    let tally = report.tally.unwrap();
    assert_eq!((tally.available(), tally.pending, tally.issued), (3, 0, 7));
    assert_eq!((report.coupons, report.duplicate_rows, report.revoked), (8, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_its_way_is_no_finding_while_it_runs_and_one_when_it_should_be_quiet() {
    let stage = Stage::open().await;
    stage.reserve(0..1).await;
    let running = audit::running(&stage.sources, &stage.rows().await, None).await.unwrap();
    assert!(running.is_clean(), "{running}");
    let found = kinds(&stage.audit().await);
    for kind in [
        FindingKind::PendingBatchLeft,
        FindingKind::ClaimsPending,
        FindingKind::MarkerWithoutRow,
    ] {
        assert!(found.contains(&kind), "{kind}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_read_is_an_error_and_not_an_empty_one() {
    let stage = Stage::open().await;
    let mut servers = servers(&stage.installation);
    servers.kafka.kafka_brokers = format!("127.0.0.1:{}", testkit::ports::free_port().unwrap());
    let sources = Sources::connect(&servers).await.unwrap();
    let error = audit::quiet(&sources, &stage.rows().await, None).await.unwrap_err();
    assert!(error.to_string().contains("nothing of Kafka"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_was_deleted_since_it_was_listed_is_no_finding_while_the_system_runs() {
    let stage = Stage::settled().await;
    let rows = stage.rows().await;
    stage.sql("UPDATE campaign SET retired_at = now()").await;
    stage.state.remove(&stage.campaign, rows[0].id).await.unwrap();
    let running = audit::running(&stage.sources, &rows, None).await.unwrap();
    assert!(running.is_clean(), "{running}");
    let error = audit::quiet(&stage.sources, &rows, None).await.unwrap_err();
    assert!(error.to_string().contains("no live campaign"), "{error}");
}
