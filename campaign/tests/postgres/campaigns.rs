use std::collections::HashMap;

use campaign::{
    identity::Epoch,
    name::CampaignName,
    postgres::{
        campaign::{CampaignTerms, OnCancel, OnDeadLetter, TermsChange},
        deletion::EndedCampaign,
        snapshot::SnapshotStart,
    },
};

use crate::shop::{Shop, TOPIC, terms};

#[tokio::test]
async fn a_campaign_reads_what_was_applied() {
    let terms = CampaignTerms {
        quantity: 7,
        ttl_ms: 90_000,
        opens_at: Some("2026-11-27T00:00:00.123456Z".parse().unwrap()),
        closes_at: Some("2026-11-28T00:00:00Z".parse().unwrap()),
        paused: true,
        on_cancel: OnCancel::Retain,
        on_dead_letter: OnDeadLetter::Release,
        code_prefix: "BF26".to_owned(),
        valid_for_ms: Some(1_000),
        details: serde_json::json!({"discount": {"type": "Percentage", "value": 20}}),
    };
    let shop = Shop::open_with(&terms).await;
    let row = shop.now().await;
    assert_eq!(row, shop.campaign);
    assert_eq!(row.terms, terms);
    assert_eq!((row.issued, row.epoch, row.fence, row.revision), (0, Epoch(0), 0, 1));
    assert_eq!(shop.database.live_campaigns().await.unwrap(), [row]);
    let other = CampaignName::new("shop", "other").unwrap();
    assert_eq!(shop.database.campaign(&other).await.unwrap(), None);
}

#[tokio::test]
async fn of_many_that_create_one_name_one_wins() {
    let shop = Shop::open(1).await;
    let name = CampaignName::new("shop", "wanted").unwrap();
    let wanted: Vec<CampaignTerms> = (1..=8).map(terms).collect();
    let created =
        futures::future::join_all(wanted.iter().map(|terms| shop.database.create_campaign(&name, terms))).await;
    let first = created[0].as_ref().unwrap();
    assert!(created.iter().all(|row| row.as_ref().unwrap() == first));
    assert_eq!(shop.count("campaign WHERE name = 'wanted'").await, 1);
}

#[tokio::test]
async fn terms_change_only_from_the_revision_and_epoch_that_were_read() {
    let shop = Shop::open(10).await;
    let id = shop.campaign.id;
    let change = async |quantity, from, to, epoch| {
        shop.database
            .set_terms(id, &terms(quantity), from, to, epoch)
            .await
            .unwrap()
    };
    assert_eq!(change(20, 1, 2, None).await, TermsChange::Written(2));
    assert_eq!(change(30, 1, 2, None).await, TermsChange::Refused);
    assert_eq!(change(30, 2, 5, Some(Epoch(1))).await, TermsChange::Refused);
    assert_eq!(change(30, 2, 5, Some(Epoch(0))).await, TermsChange::Written(5));
    let row = shop.now().await;
    assert_eq!((row.terms.quantity, row.revision), (30, 5));
}

#[tokio::test]
async fn a_campaign_never_shrinks_below_what_is_issued_and_parked() {
    let shop = Shop::open(10).await;
    let record = shop.record(&["a", "b", "c"]);
    let dead = crate::shop::reservation(&record, 2);
    shop.persist_dead(&[record], &[dead]).await.unwrap();
    let change = async |quantity| {
        shop.database
            .set_terms(shop.campaign.id, &terms(quantity), 1, 2, None)
            .await
            .unwrap()
    };
    assert_eq!(change(2).await, TermsChange::Refused);
    assert_eq!(change(3).await, TermsChange::Written(2));
    shop.assert_consistent().await;
}

#[tokio::test]
async fn an_epoch_is_never_given_twice() {
    let shop = Shop::open(1).await;
    let raise = async || shop.database.raise_epoch(shop.campaign.id).await.unwrap().unwrap();
    let first = raise().await;
    assert!(first.first);
    assert!(first.epoch.0 > 1_700_000_000, "{first:?}");
    let second = raise().await;
    assert!(!second.first);
    assert!(second.epoch > first.epoch);
    // A clock that was far ahead once.
    shop.execute("UPDATE campaign SET epoch = 90000000000").await;
    assert_eq!(raise().await.epoch, Epoch(90_000_000_001));
    assert_eq!(shop.now().await.epoch, Epoch(90_000_000_001));
}

#[tokio::test]
async fn raised_by_many_at_once_every_epoch_is_another_one() {
    let shop = Shop::open(1).await;
    let raised = futures::future::join_all((0..8).map(|_| shop.database.raise_epoch(shop.campaign.id))).await;
    let mut epochs: Vec<i64> = raised
        .into_iter()
        .map(|raised| raised.unwrap().unwrap().epoch.0)
        .collect();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), 8);
}

#[tokio::test]
async fn an_archived_campaign_frees_its_name() {
    let shop = Shop::open(1).await;
    shop.database
        .archive_campaign(shop.campaign.id, shop.campaign.revision)
        .await
        .unwrap();
    assert_eq!(shop.database.campaign(&shop.campaign.name).await.unwrap(), None);
    assert_eq!(shop.database.live_campaigns().await.unwrap(), []);
    assert_eq!(shop.database.raise_epoch(shop.campaign.id).await.unwrap(), None);
    assert_eq!(shop.database.epoch_of(shop.campaign.id).await.unwrap(), None);
    let again = shop
        .database
        .create_campaign(&shop.campaign.name, &terms(5))
        .await
        .unwrap();
    assert_ne!(again.id, shop.campaign.id);
}

#[tokio::test]
async fn a_retired_campaign_is_seen_by_nobody_and_comes_back_as_itself() {
    let shop = Shop::open(2).await;
    let id = shop.campaign.id;
    shop.persist(&[shop.record(&["a"])]).await;
    let on_its_way = shop.record(&["b"]);
    let epoch = shop.database.raise_epoch(id).await.unwrap().unwrap().epoch;
    let ended = async |revision| shop.database.retire_campaign(id, revision).await.unwrap();
    assert!(!ended(shop.campaign.revision + 1).await, "its terms are not those");
    assert!(ended(shop.campaign.revision).await);
    assert!(!ended(shop.campaign.revision).await, "once");
    assert_eq!(shop.database.campaign(&shop.campaign.name).await.unwrap(), None);
    assert_eq!(shop.database.live_campaigns().await.unwrap(), []);
    assert_eq!(shop.database.epoch_of(id).await.unwrap(), None);
    // Nobody builds its state any more, not even who had begun.
    assert_eq!(shop.database.raise_epoch(id).await.unwrap(), None);
    let begun = shop.database.begin_snapshot(TOPIC, id, epoch, &HashMap::new()).await;
    assert!(matches!(begun.unwrap(), SnapshotStart::Superseded));
    let changed = shop.database.set_terms(id, &terms(9), 1, 2, None).await.unwrap();
    assert_eq!(changed, TermsChange::Refused);
    assert_eq!(
        shop.database.ended_campaign(&shop.campaign.name).await.unwrap(),
        Some(EndedCampaign { id, archived: false })
    );
    // A claim that is on its way has its room.
    assert_eq!(shop.persist(&[on_its_way]).await.issued, 1);

    let again = shop
        .database
        .create_campaign(&shop.campaign.name, &terms(5))
        .await
        .unwrap();
    assert_eq!((again.id, again.issued, again.terms.quantity), (id, 2, 2));
    assert!(again.epoch > epoch);
    assert_eq!(shop.database.live_campaigns().await.unwrap(), [again]);
}

#[tokio::test]
async fn a_retired_campaign_can_still_be_archived_but_not_one_that_is_live_again() {
    let shop = Shop::open(2).await;
    let (id, name) = (shop.campaign.id, &shop.campaign.name);
    assert!(!shop.database.archive_retired_campaign(id).await.unwrap(), "it is live");
    shop.database.retire_campaign(id, shop.campaign.revision).await.unwrap();
    let again = shop.database.create_campaign(name, &terms(2)).await.unwrap();
    assert_eq!(again.id, id);
    assert!(
        !shop.database.archive_retired_campaign(id).await.unwrap(),
        "applied again"
    );
    shop.database.retire_campaign(id, shop.campaign.revision).await.unwrap();
    assert!(shop.database.archive_retired_campaign(id).await.unwrap());
    assert!(!shop.database.archive_retired_campaign(id).await.unwrap(), "once");
    let other = shop.database.create_campaign(name, &terms(5)).await.unwrap();
    assert_ne!(other.id, id);
}
