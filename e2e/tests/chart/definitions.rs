//! The custom resource comes and is upgraded with the chart, and stays when the release goes.

use e2e::chart::render;

use crate::DEV;

#[tokio::test]
async fn the_definition_is_an_object_of_the_release_that_is_kept() {
    let rendered = render(DEV, &[]).await.unwrap();
    let definition = rendered
        .find("CustomResourceDefinition", "couponcampaigns.coupon-operator.dev")
        .expect("the definition");
    assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(definition["spec"]["names"]["shortNames"][0], "ccamp");

    let not_kept = render(DEV, &["crds.keep=false"]).await.unwrap();
    let definition = not_kept.of_kind("CustomResourceDefinition")[0];
    assert!(definition["metadata"].get("annotations").is_none());
    let without = render(DEV, &["crds.enabled=false"]).await.unwrap();
    assert!(without.of_kind("CustomResourceDefinition").is_empty());
}
