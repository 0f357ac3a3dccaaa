//! What is printed after an install can be done as it stands.

use e2e::chart::notes;

use crate::DEV;

#[tokio::test]
async fn the_first_campaign_is_claimed_where_it_was_applied() {
    for (sets, namespace) in [
        (&[][..], "coupon"),
        (&["installation.namespace=\"shop\""], "shop"),
        (&["operator.namespaces=[\"games\",\"shop\"]"], "games"),
        (&["operator.namespaces=[\"games\",\"coupon\"]"], "coupon"),
    ] {
        let notes = notes(DEV, sets).await.unwrap();
        for line in [
            format!("kubectl -n {namespace} apply -f examples/flash-sale.yaml"),
            format!("\"campaign\": \"{namespace}/flash-sale\""),
            "kubectl -n coupon port-forward svc/coupon-intake 8080:80".to_owned(),
        ] {
            assert!(notes.contains(&line), "{sets:?} without {line}: {notes}");
        }
    }
}
