//! The Deployments follow the demand, by their scale subresource alone.

use campaign::manifest::CouponCampaign;
use jiff::Timestamp;
use operator::{
    board::Board,
    demand::{CampaignDemand, DemandNumbers},
    metrics::Metrics,
    scale::Scaler,
};
use serde_json::json;

use crate::{api_server::ApiServer, campaigns::cluster_settings};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/release/deployments";

fn cluster() -> (ApiServer, Scaler) {
    let api = ApiServer::new();
    for name in ["coupon-intake", "coupon-worker"] {
        api.put(
            DEPLOYMENTS,
            json!({"metadata": {"name": name}, "spec": {"replicas": 1, "template": {"spec": {"containers": []}}}}),
        );
    }
    let settings = cluster_settings(&[
        "--intake-deployment=coupon-intake",
        "--intake-min-replicas=2",
        "--intake-max-replicas=5",
        "--worker-deployment=coupon-worker",
        "--scale-down-after=0s",
    ]);
    let scaler = Scaler::new(api.client(), "release", &settings, Board::default(), Metrics::new());
    (api, scaler)
}

fn replicas(api: &ApiServer) -> (i64, i64) {
    let of = |name: &str| {
        api.get(&format!("{DEPLOYMENTS}/{name}")).unwrap()["spec"]["replicas"]
            .as_i64()
            .unwrap()
    };
    (of("coupon-intake"), of("coupon-worker"))
}

fn demand(pending: Option<i64>) -> CampaignDemand {
    let manifest = CouponCampaign::from_yaml(
        "{apiVersion: coupon-operator.dev/v1alpha1, kind: CouponCampaign, metadata: {name: sale}, \
          spec: {quantity: 1, intake: {replicas: 4}, worker: {targetBacklog: 100, maxReplicas: 6}}}",
    )
    .unwrap();
    let numbers = pending.map(|pending| DemandNumbers {
        pending,
        quiet_since: None,
    });
    CampaignDemand::new(&manifest.spec, numbers)
}

#[tokio::test]
async fn deployments_follow_the_campaigns_and_stay_while_they_cannot_be_read() {
    let (api, mut scaler) = cluster();
    for (what, campaigns, expected) in [
        ("no campaign: the baseline", vec![], (2, 1)),
        ("an open one", vec![demand(Some(0))], (4, 1)),
        ("a backlog", vec![demand(Some(450))], (4, 5)),
        ("the broker is out and nothing can be read", vec![demand(None)], (4, 5)),
        ("more than the ceiling", vec![demand(Some(0)), demand(Some(0))], (5, 2)),
        ("back to the baseline", vec![], (2, 1)),
    ] {
        scaler.round(&campaigns, Timestamp::now()).await.unwrap();
        assert_eq!(replicas(&api), expected, "{what}");
    }
    let others: Vec<String> = api
        .writes()
        .into_iter()
        .filter(|write| !write.ends_with("/scale"))
        .collect();
    assert_eq!(others, [""; 0], "only the scale subresource is written");
    let writes = api.writes().len();
    scaler.round(&[], Timestamp::now()).await.unwrap();
    assert_eq!(api.writes().len(), writes, "nothing is written without a change");
}

#[tokio::test]
async fn an_api_server_that_is_out_leaves_the_replicas() {
    let (api, mut scaler) = cluster();
    scaler.round(&[demand(Some(450))], Timestamp::now()).await.unwrap();
    api.set_down(true);
    scaler.round(&[], Timestamp::now()).await.unwrap_err();
    assert_eq!(replicas(&api), (4, 5));
}
