//! What users were told against what they have.

use campaign::identity::RequestId;
use coupon::audit::{FindingKind, Successes};

use crate::stage::{Stage, kinds, user};

#[tokio::test(flavor = "multi_thread")]
async fn the_successes_are_the_coupons_no_more_and_no_less() {
    let stage = Stage::settled().await;
    let mut successes = Successes::default();
    for n in 0..8 {
        successes.insert(stage.coupon_of(n).await, user(n));
    }
    let audit = stage.audit_with(&successes).await;
    assert!(audit.is_clean(), "{audit}");

    let mut one_too_many = successes.clone();
    one_too_many.insert(RequestId::fresh(), user(9));
    let audit = stage.audit_with(&one_too_many).await;
    assert_eq!(kinds(&audit), [FindingKind::SuccessWithoutRow].into(), "{audit}");

    stage
        .sql(&format!(
            "UPDATE coupon SET id = gen_random_uuid() WHERE id = '{}'",
            stage.coupon_of(2).await
        ))
        .await;
    let audit = stage.audit_with(&successes).await;
    for kind in [
        FindingKind::SuccessWithoutRow,
        FindingKind::RowWithoutSuccess,
        FindingKind::MarkerWrongRequest,
    ] {
        assert!(kinds(&audit).contains(&kind), "{kind}: {audit}");
    }
}
