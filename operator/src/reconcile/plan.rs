//! Step 3: what is to be done, as a function of what was read and what is wanted. No I/O, no clock.

use campaign::{
    align::{is_over, keeps_promise},
    manifest::DeletionPolicy,
    postgres::campaign::{CampaignRow, CampaignTerms},
    rebuild::Force,
    redis::state::StateAnswer,
};

use crate::{
    conditions::Trouble,
    reconcile::{load::Loaded, validate::Wanted},
    resource::RebuildReason,
};

/// What a plan follows from.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The object is deleted.
    pub deleted: bool,
    /// The annotation lets it go undrained.
    pub force_delete: bool,
    /// Our finalizer is there.
    pub has_finalizer: bool,
    /// What the spec wants; `None`: it cannot be meant.
    pub wanted: Option<&'a Wanted>,
    /// The annotation that asks for a rebuild, where it has another value than was served.
    pub asks_rebuild: bool,
    /// What was read.
    pub loaded: &'a Loaded,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Before anything outside the cluster is made.
    AddFinalizer,
    /// The campaign's row.
    Create,
    /// The state in Redis.
    Rebuild {
        /// For the status.
        reason: RebuildReason,
        /// Whether a state that serves is replaced.
        force: Force,
    },
    /// The terms of the spec, in Postgres and Redis.
    Apply,
    /// Redis to what Postgres says.
    Align,
    /// Shuts the door, waits for what is on its way, removes the state.
    Drain(DeletionPolicy),
    /// The object may go.
    RemoveFinalizer,
}

/// What is to be done, in this order; a step that fails stops the ones after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// What no step can bring about.
    pub trouble: Vec<Trouble>,
}

/// Plans.
pub fn plan(situation: Situation<'_>) -> Plan {
    if situation.deleted {
        return Plan {
            steps: deletion(situation),
            trouble: Vec::new(),
        };
    }
    let mut plan = Plan::default();
    if !situation.has_finalizer && situation.wanted.is_some() {
        plan.steps.push(Step::AddFinalizer);
    }
    // What cannot be read is left as it is.
    let (Ok(row), Ok(state)) = (&situation.loaded.row, &situation.loaded.state) else {
        return plan;
    };
    match (row, situation.wanted) {
        (None, None) => {}
        (None, Some(_)) => plan.steps.extend([
            Step::Create,
            Step::Rebuild {
                reason: RebuildReason::Created,
                force: Force::IfMissing,
            },
            Step::Apply,
        ]),
        (Some(row), wanted) => {
            plan.steps.extend(rebuild(situation, row, state));
            match wanted {
                Some(wanted) if let Err(broken) = keeps_promise(row, &wanted.terms) => {
                    plan.steps.push(Step::Align);
                    plan.trouble.push(Trouble {
                        reason: "Invalid",
                        message: broken.to_string(),
                    });
                }
                Some(wanted) => match distance(&wanted.terms, row, situation.loaded) {
                    Distance::None => plan.steps.push(Step::Align),
                    Distance::Reachable => plan.steps.push(Step::Apply),
                    Distance::BelowTaken { taken } => {
                        plan.steps.push(Step::Align);
                        plan.trouble.push(below_taken(wanted.terms.quantity, taken));
                    }
                },
                // A spec that went bad must not stop the sale that it once was.
                None => plan.steps.push(Step::Align),
            }
        }
    }
    plan
}

/// A quantity cannot be lowered so far.
pub fn below_taken(wanted: i64, taken: i64) -> Trouble {
    Trouble {
        reason: "QuantityBelowTaken",
        message: format!(
            "spec.quantity is {wanted}, but {taken} are taken: nobody loses a coupon, nobody gets another one"
        ),
    }
}

fn deletion(situation: Situation<'_>) -> Vec<Step> {
    if !situation.has_finalizer {
        return Vec::new();
    }
    if situation.force_delete {
        return vec![Step::RemoveFinalizer];
    }
    // A spec that cannot be read says nothing about its campaign's holders: they stay.
    let policy = situation.wanted.map_or(DeletionPolicy::Retain, Wanted::deletion_policy);
    vec![Step::Drain(policy), Step::RemoveFinalizer]
}

fn rebuild(situation: Situation<'_>, row: &CampaignRow, state: &StateAnswer) -> Option<Step> {
    let serves = situation.loaded.serving().is_some();
    if situation.asks_rebuild {
        return Some(Step::Rebuild {
            reason: RebuildReason::Requested,
            force: Force::Always,
        });
    }
    if serves {
        return None;
    }
    let reason = match state {
        StateAnswer::NotInitialized if is_over(row, situation.loaded.now) => return None,
        StateAnswer::NotInitialized => RebuildReason::StateMissing,
        StateAnswer::Rebuilding { .. } => RebuildReason::Interrupted,
        StateAnswer::Present(numbers) if numbers.campaign != row.id => RebuildReason::OtherCampaign,
        StateAnswer::Present(_) => RebuildReason::OtherEpoch,
    };
    Some(Step::Rebuild {
        reason,
        force: Force::IfMissing,
    })
}

/// How far the row is from what is wanted.
enum Distance {
    None,
    Reachable,
    BelowTaken { taken: i64 },
}

fn distance(wanted: &CampaignTerms, row: &CampaignRow, loaded: &Loaded) -> Distance {
    if row.terms == *wanted {
        return Distance::None;
    }
    let but_for_quantity = CampaignTerms {
        quantity: row.terms.quantity,
        ..wanted.clone()
    };
    match loaded.serving() {
        Some((_, numbers))
            if row.terms == but_for_quantity
                && wanted.quantity < row.terms.quantity
                && row.terms.quantity <= numbers.taken =>
        {
            Distance::BelowTaken { taken: numbers.taken }
        }
        _ => Distance::Reachable,
    }
}

#[cfg(test)]
mod tests {
    use campaign::{
        identity::{CampaignId, Epoch},
        redis::state::StateNumbers,
    };
    use uuid::Uuid;

    use super::*;
    use crate::samples::{
        EPOCH, at, id, loaded, numbers, postgres_out, redis_out, wanted, wanted_with, with_numbers, with_row,
        with_state,
    };

    const CREATED: Step = if_missing(RebuildReason::Created);

    const fn if_missing(reason: RebuildReason) -> Step {
        Step::Rebuild {
            reason,
            force: Force::IfMissing,
        }
    }

    fn situation<'a>(wanted: &'a Wanted, loaded: &'a Loaded) -> Situation<'a> {
        Situation {
            deleted: false,
            force_delete: false,
            has_finalizer: true,
            wanted: Some(wanted),
            asks_rebuild: false,
            loaded,
        }
    }

    #[test]
    fn each_finding_has_its_steps() {
        let wanted = wanted();
        let at_time = |loaded: Loaded, time| Loaded {
            now: at(time),
            ..loaded
        };
        let missing = || with_state(&wanted, StateAnswer::NotInitialized);
        let other = |change: fn(&mut StateNumbers)| with_numbers(&wanted, change);
        for (what, loaded, steps) in [
            (
                "new",
                Loaded {
                    row: Ok(None),
                    ..missing()
                },
                vec![Step::Create, CREATED, Step::Apply],
            ),
            ("as wanted", loaded(&wanted), vec![Step::Align]),
            (
                "sold out",
                with_numbers(&wanted, |numbers| numbers.taken = 100),
                vec![Step::Align],
            ),
            (
                "before the warm-up",
                at_time(loaded(&wanted), "09:00:00"),
                vec![Step::Align],
            ),
            (
                "lost before the opening",
                at_time(missing(), "09:00:00"),
                vec![if_missing(RebuildReason::StateMissing), Step::Align],
            ),
            (
                "lost while open, or another server",
                missing(),
                vec![if_missing(RebuildReason::StateMissing), Step::Align],
            ),
            (
                "over, and the state has expired",
                at_time(missing(), "12:00:00"),
                vec![Step::Align],
            ),
            (
                "another epoch",
                other(|numbers| numbers.epoch = Epoch(EPOCH.0 - 1)),
                vec![if_missing(RebuildReason::OtherEpoch), Step::Align],
            ),
            (
                "another campaign of this name",
                other(|numbers| numbers.campaign = CampaignId(Uuid::from_u128(2))),
                vec![if_missing(RebuildReason::OtherCampaign), Step::Align],
            ),
            (
                "somebody rebuilds, or died over it",
                with_state(
                    &wanted,
                    StateAnswer::Rebuilding {
                        campaign: id(),
                        epoch: EPOCH,
                    },
                ),
                vec![if_missing(RebuildReason::Interrupted), Step::Align],
            ),
            (
                "grows",
                with_row(&wanted, |row| row.terms.quantity = 50),
                vec![Step::Apply],
            ),
            (
                "shrinks",
                with_row(&wanted, |row| row.terms.quantity = 500),
                vec![Step::Apply],
            ),
            (
                "is to pause",
                with_row(&wanted, |row| row.terms.paused = true),
                vec![Step::Apply],
            ),
            (
                "another window",
                with_row(&wanted, |row| row.terms.closes_at = None),
                vec![Step::Apply],
            ),
            (
                "another window, and the state is lost",
                Loaded {
                    state: Ok(StateAnswer::NotInitialized),
                    ..with_row(&wanted, |row| row.terms.closes_at = None)
                },
                vec![if_missing(RebuildReason::StateMissing), Step::Apply],
            ),
            ("Redis is out", redis_out(&wanted), vec![]),
            ("Postgres is out", postgres_out(&wanted), vec![]),
        ] {
            assert_eq!(
                plan(situation(&wanted, &loaded)),
                Plan { steps, trouble: vec![] },
                "{what}"
            );
        }
    }

    #[test]
    fn a_shrink_below_what_is_taken_goes_as_far_as_it_can() {
        let wanted = wanted_with("quantity: 10");
        let reached = |quantity, taken| {
            let mut numbers = numbers(&wanted);
            (numbers.quantity, numbers.taken) = (quantity, taken);
            Loaded {
                state: Ok(StateAnswer::Present(numbers)),
                ..with_row(&wanted, |row| row.terms.quantity = quantity)
            }
        };
        let stays = plan(situation(&wanted, &reached(40, 40)));
        assert_eq!(stays.steps, [Step::Align]);
        assert_eq!(stays.trouble[0].reason, "QuantityBelowTaken");
        assert!(
            stays.trouble[0].message.contains("40 are taken"),
            "{}",
            stays.trouble[0].message
        );
        // A slot came back: it may shrink further.
        assert_eq!(
            plan(situation(&wanted, &reached(40, 39))),
            Plan {
                steps: vec![Step::Apply],
                trouble: vec![]
            }
        );
    }

    #[test]
    fn the_finalizer_comes_before_anything_outside_the_cluster() {
        let wanted = wanted();
        let new = Loaded {
            row: Ok(None),
            ..with_state(&wanted, StateAnswer::NotInitialized)
        };
        let without = Situation {
            has_finalizer: false,
            ..situation(&wanted, &new)
        };
        assert_eq!(
            plan(without).steps,
            [Step::AddFinalizer, Step::Create, CREATED, Step::Apply]
        );
    }

    #[test]
    fn a_spec_that_cannot_be_meant_stops_no_sale() {
        let wanted = wanted();
        let lost = with_state(&wanted, StateAnswer::NotInitialized);
        let never_created = Loaded {
            row: Ok(None),
            ..lost.clone()
        };
        for (loaded, steps) in [
            (loaded(&wanted), vec![Step::Align]),
            (lost, vec![if_missing(RebuildReason::StateMissing), Step::Align]),
            (never_created, vec![]),
        ] {
            let invalid = Situation {
                wanted: None,
                ..situation(&wanted, &loaded)
            };
            assert_eq!(plan(invalid).steps, steps);
        }
    }

    #[test]
    fn the_annotation_rebuilds_whatever_is_there() {
        let wanted = wanted();
        for loaded in [loaded(&wanted), with_state(&wanted, StateAnswer::NotInitialized)] {
            let asked = Situation {
                asks_rebuild: true,
                ..situation(&wanted, &loaded)
            };
            let rebuild = Step::Rebuild {
                reason: RebuildReason::Requested,
                force: Force::Always,
            };
            assert_eq!(plan(asked).steps, [rebuild, Step::Align]);
        }
        let out = redis_out(&wanted);
        assert_eq!(
            plan(Situation {
                asks_rebuild: true,
                ..situation(&wanted, &out)
            })
            .steps,
            []
        );
    }

    #[test]
    fn a_deleted_object_is_drained_unless_it_is_forced() {
        let (retain, delete) = (wanted(), wanted_with("quantity: 1, deletionPolicy: Delete"));
        let (there, out) = (loaded(&retain), redis_out(&retain));
        let drained = |policy| vec![Step::Drain(policy), Step::RemoveFinalizer];
        for (what, wanted, loaded, force_delete, has_finalizer, steps) in [
            (
                "retain",
                Some(&retain),
                &there,
                false,
                true,
                drained(DeletionPolicy::Retain),
            ),
            (
                "delete",
                Some(&delete),
                &there,
                false,
                true,
                drained(DeletionPolicy::Delete),
            ),
            (
                "a spec that cannot be read keeps the holders",
                None,
                &there,
                false,
                true,
                drained(DeletionPolicy::Retain),
            ),
            (
                "servers are out",
                Some(&retain),
                &out,
                false,
                true,
                drained(DeletionPolicy::Retain),
            ),
            ("forced", Some(&delete), &out, true, true, vec![Step::RemoveFinalizer]),
            ("not ours to hold", Some(&retain), &there, false, false, vec![]),
        ] {
            let deleted = Situation {
                deleted: true,
                force_delete,
                has_finalizer,
                wanted,
                asks_rebuild: true,
                loaded,
            };
            assert_eq!(plan(deleted).steps, steps, "{what}");
        }
    }
}
