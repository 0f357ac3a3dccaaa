//! What an audit can find, each kind under a name that scripts may rely on.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::{self, Display},
};

use campaign::name::CampaignName;

macro_rules! kinds {
    ($($kind:ident $name:literal $meaning:literal)*) => {
        /// A kind of finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum FindingKind {
            $(#[doc = $meaning] $kind,)*
        }

        impl FindingKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The stable name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$kind => $meaning,)*
                }
            }
        }
    };
}

kinds! {
    StateMissing "state-missing" "Redis has no usable state of a campaign that was built: rebuild it"
    StateRebuilding "state-rebuilding" "the state is being rebuilt, or a rebuild died half way"
    StateOfAnotherCampaign "state-of-another-campaign" "the state in Redis belongs to another campaign id"
    EpochDiffers "epoch-differs" "the state in Redis lives in another epoch than Postgres has"
    QuantityDiffers "quantity-differs" "Redis and Postgres have different quantities"
    KeyWithoutTtl "key-without-ttl" "a key of the state will never expire"
    Oversold "oversold" "more coupons and parked claims than the quantity"
    SlotsLeaked "slots-leaked" "slots are taken that nobody holds: they can never be sold"
    SlotsUnaccounted "slots-unaccounted" "coupons without a slot: they could be sold twice"
    ClaimsPending "claims-pending" "claims are pending although it is quiet"
    OccupiedCountWrong "occupied-count-wrong" "the count of taken slots is not the number of markers that hold one"
    PendingSumWrong "pending-sum-wrong" "meta.pending is not the sum of pending-claims"
    PendingBatchLeft "pending-batch-left" "a batch is pending although it is quiet"
    PendingClaimsOrphaned "pending-claims-orphaned" "pending-claims counts a batch that is not pending"
    MarkerUnreadable "marker-unreadable" "a marker that no release writes"
    MarkerWithoutRow "marker-without-row" "a user's marker has neither coupon nor parked claim: he can never claim"
    MarkerMissing "marker-missing" "a user has a coupon or parked claim and no marker: he could claim twice"
    MarkerWrongRequest "marker-wrong-request" "a marker names another request than the user's row"
    MarkerWrongStatus "marker-wrong-status" "a marker says canceled where the coupon holds its slot, or the other way round"
    IssuedCountWrong "issued-count-wrong" "campaign.issued is not the number of coupons that hold a slot"
    ParkedCountWrong "parked-count-wrong" "campaign.parked is not the number of parked claims that hold a slot"
    UserTwice "user-twice" "a user has more than one coupon"
    CodeTwice "code-twice" "a code belongs to more than one coupon"
    RecordUndecided "record-undecided" "a record was consumed and its batch has no outcome"
    ClaimWithoutOutcome "claim-without-outcome" "a stored claim has neither coupon nor rejection nor parked entry"
    BatchWithoutRecord "batch-without-record" "a batch counts as stored and Kafka has no record of it"
    CouponWithoutBatch "coupon-without-batch" "a coupon came from a batch that is not stored"
    CouponWithoutClaim "coupon-without-claim" "no record in Kafka carries the claim of a coupon"
    RejectedAndIssued "rejected-and-issued" "one attempt has both a coupon and a rejection"
    ImpossibleRejection "impossible-rejection" "a stored claim was rejected for a reason that cannot happen while the rules hold"
    ClaimsNotConsumed "claims-not-consumed" "records of the requests topic wait for the worker"
    EventsNotConsumed "events-not-consumed" "events of the lifecycle topic wait for the projection"
    ConsumedPastEnd "consumed-past-end" "Postgres has consumed more than Kafka has: the log was cut back"
    RecordsLost "records-lost" "records were removed by retention before they were consumed"
    OutboxNotEmpty "outbox-not-empty" "events wait to be published although it is quiet"
    ActivityMissing "activity-missing" "the projection lacks an event that the coupon's row tells of"
    ActivityRepeated "activity-repeated" "the projection has an event of a coupon twice"
    ActivityUnfounded "activity-unfounded" "the projection has an event that no coupon's row tells of"
    EventNotProjected "event-not-projected" "an event was published and consumed, and the projection lacks it"
    ActivityNotPublished "activity-not-published" "the projection has an event that the lifecycle topic lacks"
    EventUnreadable "event-unreadable" "a record of the lifecycle topic that is no event"
    SuccessWithoutRow "success-without-row" "a user was told SUCCESS and has no coupon of that request"
    RowWithoutSuccess "row-without-success" "a coupon whose user was never told SUCCESS"
}

impl Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many ids a report shows.
const SHOWN: usize = 5;
/// How many ids of one kind are kept, so that a spoiled campaign of a million users does not fill the memory.
const KEPT: usize = 10_000;

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: FindingKind,
    /// Where; `None` where it concerns the installation.
    pub campaign: Option<CampaignName>,
    /// How often.
    pub count: u64,
    /// Whom or what it concerns (the first of them): users, batches, coupons, or the numbers that differ.
    pub ids: Vec<String>,
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(campaign) = &self.campaign {
            write!(f, " in {campaign}")?;
        }
        write!(f, ": {}", self.kind.meaning())?;
        if self.count > 1 {
            write!(f, " ({} times)", self.count)?;
        }
        let shown: Vec<&str> = self.ids.iter().take(SHOWN).map(String::as_str).collect();
        write!(f, ": {}", shown.join("; "))?;
        if self.count > shown.len() as u64 {
            write!(f, "; …")?;
        }
        Ok(())
    }
}

/// Gathers findings of one campaign, or of the installation.
#[derive(Debug)]
pub struct Findings {
    campaign: Option<CampaignName>,
    found: BTreeMap<FindingKind, (u64, Vec<String>)>,
}

impl Findings {
    /// None yet.
    pub fn of(campaign: Option<CampaignName>) -> Self {
        Self {
            campaign,
            found: BTreeMap::new(),
        }
    }

    /// One more.
    pub fn add(&mut self, kind: FindingKind, id: impl Display) {
        let (count, ids) = self.found.entry(kind).or_default();
        *count += 1;
        if ids.len() < KEPT {
            ids.push(id.to_string());
        }
    }

    /// One a kind, in the order of the kinds.
    pub fn into_list(self) -> Vec<Finding> {
        let campaign = self.campaign;
        self.found
            .into_iter()
            .map(|(kind, (count, ids))| Finding {
                kind,
                campaign: campaign.clone(),
                count,
                ids,
            })
            .collect()
    }
}

/// What two looks at a running system found alike. Servers are read one after the other, so that one look alone proves
/// nothing.
pub fn confirmed(first: Vec<Finding>, second: &[Finding]) -> Vec<Finding> {
    first
        .into_iter()
        .filter_map(|finding| {
            let again = second
                .iter()
                .find(|other| other.kind == finding.kind && other.campaign == finding.campaign)?;
            let known: HashSet<&String> = again.ids.iter().collect();
            let ids: Vec<String> = finding.ids.into_iter().filter(|id| known.contains(id)).collect();
            (!ids.is_empty()).then_some(Finding {
                count: ids.len() as u64,
                ids,
                ..finding
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(of: &[(FindingKind, &str)]) -> Vec<Finding> {
        let mut findings = Findings::of(None);
        for (kind, id) in of {
            findings.add(*kind, id);
        }
        findings.into_list()
    }

    #[test]
    fn names_are_kebab_case_and_distinct() {
        let names: HashSet<&str> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), FindingKind::ALL.len());
        for name in names {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{name}");
        }
    }

    #[test]
    fn every_kind_is_explained_in_the_documentation() {
        let documentation = include_str!("../../../docs/cli.md");
        for kind in FindingKind::ALL {
            let row = format!("| `{kind}` | {} |", kind.meaning());
            assert!(documentation.contains(&row), "docs/cli.md lacks {row}");
        }
    }

    #[test]
    fn a_running_system_is_accused_only_of_what_two_looks_saw() {
        use FindingKind::{MarkerMissing, Oversold};
        let first = findings(&[(MarkerMissing, "a"), (MarkerMissing, "b"), (Oversold, "by 1")]);
        let second = findings(&[(MarkerMissing, "b"), (MarkerMissing, "c")]);
        assert_eq!(confirmed(first, &second), findings(&[(MarkerMissing, "b")]));
    }

    #[test]
    fn a_finding_reads_as_a_line_with_its_first_ids() {
        let many: Vec<(FindingKind, &str)> = vec![(FindingKind::UserTwice, "u"); 7];
        let line = findings(&many)[0].to_string();
        assert!(line.starts_with("user-twice: "), "{line}");
        assert!(line.contains("(7 times)") && line.ends_with("; …"), "{line}");
    }
}
