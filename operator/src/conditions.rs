//! The conditions of a campaign. Each is a function of what was read; [`merge`] puts them over the earlier ones, so
//! that a time changes only with its status.
//!
//! Types and reasons are constants that people may rely on; `docs/operator.md` has the table.

use campaign::{
    conservation::Drift,
    postgres::campaign::CampaignRow,
    redis::state::{StateAnswer, StateNumbers, StateStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    drift::Verdict,
    reconcile::load::{Loaded, Unreadable},
    resource::State,
};

/// True, False or not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// What one source says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The condition's type.
    pub kind: &'static str,
    /// Whether it holds.
    pub truth: Truth,
    /// A constant.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Finding {
    /// One finding.
    pub fn new(kind: &'static str, truth: impl Into<Truth>, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            truth: truth.into(),
            reason,
            message: message.into(),
        }
    }
}

/// As the spec wants it, and its state serves.
pub const READY: &str = "Ready";
/// Something was changed and is not yet in force.
pub const PROGRESSING: &str = "Progressing";
/// Somebody should look.
pub const DEGRADED: &str = "Degraded";
/// The state in Redis serves.
pub const STATE_READY: &str = "StateReady";
/// The door takes claims now, or tells that all slots are taken.
pub const OPEN: &str = "Open";
/// No slot is free.
pub const EXHAUSTED: &str = "Exhausted";
/// The equation of slots holds.
pub const CONSERVED: &str = "Conserved";
/// The object is deleted, its campaign not yet drained.
pub const DRAINING: &str = "Draining";

/// Something that people should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A constant.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What all sources say, in the order of the table.
pub fn findings(seen: &Seen<'_>) -> Vec<Finding> {
    let state_ready = state_ready(seen);
    let progressing = progressing(seen, &state_ready);
    let degraded = degraded(seen);
    let ready = ready(seen, &state_ready, &progressing);
    let open = open(seen, &state_ready);
    let mut findings = vec![
        ready,
        progressing,
        degraded,
        state_ready,
        open,
        exhausted(seen),
        conserved(seen),
    ];
    findings.retain(|finding| !finding.reason.is_empty());
    findings
}

/// What the conditions follow from.
pub struct Seen<'a> {
    /// What was read after everything was done.
    pub loaded: &'a Loaded,
    /// What went wrong in a step, or is not as wanted.
    pub trouble: &'a [Trouble],
    /// What the looks at the equation say; `None`: it could not be looked at.
    pub verdict: Option<&'a Verdict>,
}

impl Seen<'_> {
    fn numbers(&self) -> Option<&StateNumbers> {
        self.loaded.serving().map(|(_, numbers)| numbers)
    }

    fn unreadable(&self) -> Option<&Unreadable> {
        self.loaded.unreadable()
    }
}

fn state_ready(seen: &Seen<'_>) -> Finding {
    let loaded = seen.loaded;
    if let Some(unreadable) = seen.unreadable() {
        return Finding::new(STATE_READY, Truth::Unknown, unreadable.reason(), unreadable.to_string());
    }
    if seen.numbers().is_some() {
        return Finding::new(STATE_READY, true, "Serving", "the state in Redis serves");
    }
    match (&loaded.row, &loaded.state) {
        (Ok(None), _) => Finding::new(STATE_READY, false, "NotCreated", "the campaign is not in Postgres yet"),
        (Ok(Some(row)), _) if is_over(row, loaded.now) => {
            Finding::new(STATE_READY, false, "Over", "the window is over: nothing to keep")
        }
        (_, Ok(StateAnswer::Rebuilding { epoch, .. })) => Finding::new(
            STATE_READY,
            false,
            "Rebuilding",
            format!("epoch {epoch} is being built"),
        ),
        (_, Ok(StateAnswer::Present(numbers))) => Finding::new(
            STATE_READY,
            false,
            "OtherEpoch",
            format!("the state is of campaign {}, epoch {}", numbers.campaign, numbers.epoch),
        ),
        _ => Finding::new(
            STATE_READY,
            false,
            "StateMissing",
            "a key is missing, or another server serves",
        ),
    }
}

fn progressing(seen: &Seen<'_>, state_ready: &Finding) -> Finding {
    match state_ready.reason {
        _ if seen.unreadable().is_some() => Finding::new(
            PROGRESSING,
            Truth::Unknown,
            state_ready.reason,
            state_ready.message.clone(),
        ),
        // Nothing is made of a spec that cannot be meant.
        "NotCreated" if seen.trouble.iter().any(|trouble| trouble.reason == "Invalid") => {
            Finding::new(PROGRESSING, false, "Invalid", "the spec cannot be applied")
        }
        "Rebuilding" | "StateMissing" | "OtherEpoch" | "NotCreated" => {
            Finding::new(PROGRESSING, true, "StateNotReady", "the state is being made ready")
        }
        _ if seen.trouble.iter().any(|trouble| trouble.reason == "ApplyFailed") => {
            Finding::new(PROGRESSING, true, "Retrying", "what the spec wants is tried again")
        }
        _ => Finding::new(PROGRESSING, false, "UpToDate", "nothing is left to do"),
    }
}

/// The topic of claims ends before what was consumed of it: the doors of the whole installation are shut.
fn shortened(kind: &'static str, truth: Truth, loaded: &Loaded) -> Option<Finding> {
    let found = loaded.shortened?;
    let message = format!(
        "the topic of claims was made anew or cut back (partition {} is consumed up to {} and ends at {}): no claim is taken; \
         restore it, or accept it as it is with `coupon topics accept`",
        found.partition, found.consumed, found.end
    );
    Some(Finding::new(kind, truth, "ClaimsTopicShortened", message))
}

fn degraded(seen: &Seen<'_>) -> Finding {
    if let Some(shortened) = shortened(DEGRADED, Truth::True, seen.loaded) {
        return shortened;
    }
    if let Some(trouble) = seen.trouble.first() {
        return Finding::new(DEGRADED, true, trouble.reason, trouble.message.clone());
    }
    if let Some(unreadable) = seen.unreadable() {
        return Finding::new(DEGRADED, true, unreadable.reason(), unreadable.to_string());
    }
    if let Some(Verdict::Broken(_)) = seen.verdict {
        return Finding::new(
            DEGRADED,
            true,
            "NotConserved",
            "slots are missing or too many; see Conserved",
        );
    }
    match &seen.loaded.row {
        Ok(Some(row)) if row.parked > 0 => Finding::new(
            DEGRADED,
            true,
            "DeadLetters",
            format!(
                "{} claims are parked and keep their slots; see `coupon dlq`",
                row.parked
            ),
        ),
        _ => Finding::new(DEGRADED, false, "Healthy", "nothing to look into"),
    }
}

fn ready(seen: &Seen<'_>, state_ready: &Finding, progressing: &Finding) -> Finding {
    if let Some(shortened) = shortened(READY, Truth::False, seen.loaded) {
        return shortened;
    }
    if let Some(trouble) = seen
        .trouble
        .iter()
        .find(|trouble| trouble.reason != "QuantityBelowTaken")
    {
        return Finding::new(READY, false, trouble.reason, trouble.message.clone());
    }
    if state_ready.truth == Truth::Unknown {
        return Finding::new(READY, Truth::Unknown, state_ready.reason, state_ready.message.clone());
    }
    if state_ready.reason == "Over" {
        return Finding::new(READY, true, "Over", "the window is over");
    }
    if state_ready.truth == Truth::False || progressing.truth == Truth::True {
        return Finding::new(READY, false, state_ready.reason, state_ready.message.clone());
    }
    Finding::new(READY, true, "AsWanted", "the campaign is as its spec wants it")
}

fn open(seen: &Seen<'_>, state_ready: &Finding) -> Finding {
    let Ok(Some(row)) = &seen.loaded.row else {
        return Finding::new(OPEN, Truth::Unknown, state_ready.reason, state_ready.message.clone());
    };
    let terms = &row.terms;
    if is_over(row, seen.loaded.now) {
        Finding::new(OPEN, false, "Closed", "the window is over")
    } else if let Some(opens_at) = terms.opens_at.filter(|opens_at| *opens_at > seen.loaded.now) {
        Finding::new(OPEN, false, "NotOpenYet", format!("opens at {opens_at}"))
    } else if let Some(shortened) = shortened(OPEN, Truth::False, seen.loaded) {
        shortened
    } else if let Some(numbers) = seen.numbers() {
        if numbers.status == StateStatus::Paused {
            Finding::new(OPEN, false, "Paused", "claims are refused for now")
        } else {
            Finding::new(
                OPEN,
                true,
                "InWindow",
                "the door takes claims while there are free slots",
            )
        }
    } else {
        Finding::new(OPEN, state_ready.truth, state_ready.reason, state_ready.message.clone())
    }
}

fn exhausted(seen: &Seen<'_>) -> Finding {
    match seen.numbers() {
        Some(numbers) if numbers.available() == 0 => Finding::new(
            EXHAUSTED,
            true,
            "SoldOut",
            format!("all {} slots are taken", numbers.quantity),
        ),
        // How many are free is in the status: a message that changes with every claim would be no condition.
        Some(_) => Finding::new(EXHAUSTED, false, "Available", "there are free slots"),
        None if seen.unreadable().is_none()
            && matches!(&seen.loaded.row, Ok(Some(row)) if is_over(row, seen.loaded.now)) =>
        {
            Finding::new(EXHAUSTED, false, "Over", "the window is over")
        }
        None => Finding::new(
            EXHAUSTED,
            Truth::Unknown,
            "StateNotReady",
            "the state cannot be read or is not ready",
        ),
    }
}

fn conserved(seen: &Seen<'_>) -> Finding {
    match seen.verdict {
        Some(Verdict::Balanced) => Finding::new(CONSERVED, true, "Balanced", "every slot is accounted for"),
        Some(Verdict::Broken(drifts)) => Finding::new(CONSERVED, false, drift_reason(drifts), drift_message(drifts)),
        // One odd look, or none at all, changes nothing about what is known.
        Some(Verdict::Suspect) | None => keep(CONSERVED),
    }
}

/// Leaves the earlier condition as it is.
fn keep(kind: &'static str) -> Finding {
    Finding::new(kind, Truth::Unknown, "", "")
}

fn drift_reason(drifts: &[Drift]) -> &'static str {
    match drifts.first() {
        Some(Drift::Oversold { .. }) => "Oversold",
        Some(Drift::Leaked { .. }) => "Leaked",
        Some(Drift::Unsettled { .. }) => "Unsettled",
        Some(Drift::Unaccounted { .. }) | None => "Unaccounted",
    }
}

fn drift_message(drifts: &[Drift]) -> String {
    drifts.iter().map(Drift::to_string).collect::<Vec<_>>().join("; ")
}

fn is_over(row: &CampaignRow, now: Timestamp) -> bool {
    campaign::align::is_over(row, now)
}

/// What a claim meets, in one word.
pub fn state(findings: &[Finding]) -> State {
    let find = |kind| findings.iter().find(|finding| finding.kind == kind);
    let open = find(OPEN);
    let sold_out = find(EXHAUSTED).is_some_and(|finding| finding.truth == Truth::True);
    match open.map(|open| (open.truth, open.reason)) {
        Some((_, "Closed")) => State::Closed,
        Some((_, "NotOpenYet")) => State::Waiting,
        Some((_, "Paused")) => State::Paused,
        Some((Truth::True, _)) if sold_out => State::SoldOut,
        Some((Truth::True, _)) => State::Open,
        Some((Truth::False, _)) => State::Unavailable,
        Some((Truth::Unknown, _)) | None => State::Unknown,
    }
}

/// Puts findings over earlier conditions. What a finding does not speak of is kept, in the order of the findings, then
/// of before; the time changes only when the status does. Answers the conditions and which of them are news: another
/// status or another reason.
pub fn merge(
    earlier: &[Condition],
    findings: &[Finding],
    generation: Option<i64>,
    now: Timestamp,
) -> (Vec<Condition>, Vec<Finding>) {
    let mut merged = Vec::with_capacity(earlier.len().max(findings.len()));
    let mut news = Vec::new();
    for finding in findings {
        let before = earlier.iter().find(|condition| condition.type_ == finding.kind);
        let same_status = before.filter(|before| before.status == finding.truth.as_str());
        if same_status.is_none_or(|before| before.reason != finding.reason) {
            news.push(finding.clone());
        }
        merged.push(Condition {
            type_: finding.kind.to_owned(),
            status: finding.truth.as_str().to_owned(),
            reason: finding.reason.to_owned(),
            message: finding.message.clone(),
            observed_generation: generation,
            last_transition_time: same_status.map_or(Time(now), |before| before.last_transition_time.clone()),
        });
    }
    merged.extend(
        earlier
            .iter()
            .filter(|before| findings.iter().all(|finding| finding.kind != before.type_))
            .cloned(),
    );
    (merged, news)
}

#[cfg(test)]
mod tests {
    use campaign::kafka::offsets::PastEnd;

    use super::*;
    use crate::{
        reconcile::load::Loaded,
        samples::{EPOCH, at, id, loaded, postgres_out, redis_out, wanted, with_numbers, with_row, with_state},
    };

    fn found(
        loaded: &Loaded,
        trouble: &[Trouble],
        verdict: Option<&Verdict>,
    ) -> Vec<(&'static str, Truth, &'static str)> {
        let seen = Seen {
            loaded,
            trouble,
            verdict,
        };
        findings(&seen)
            .into_iter()
            .map(|finding| (finding.kind, finding.truth, finding.reason))
            .collect()
    }

    fn short(loaded: &Loaded) -> [(Truth, &'static str); 6] {
        let found = found(loaded, &[], None);
        [READY, PROGRESSING, DEGRADED, STATE_READY, OPEN, EXHAUSTED].map(|kind| {
            let (_, truth, reason) = found.iter().find(|(other, ..)| *other == kind).expect("there");
            (*truth, *reason)
        })
    }

    #[test]
    fn conditions_follow_from_what_was_read() {
        use Truth::{False, True, Unknown};
        let wanted = wanted();
        let (up, well) = ((False, "UpToDate"), (False, "Healthy"));
        let ready = (True, "AsWanted");
        let serving = (True, "Serving");
        let free = (False, "Available");
        let working = (True, "StateNotReady");
        let dark = (Unknown, "StateNotReady");
        let missing = with_state(&wanted, StateAnswer::NotInitialized);
        let rebuilding = with_state(
            &wanted,
            StateAnswer::Rebuilding {
                campaign: id(),
                epoch: EPOCH,
            },
        );
        let (redis, postgres) = ("RedisUnreadable", "PostgresUnreadable");
        for (what, loaded, state, expected) in [
            (
                "open",
                loaded(&wanted),
                State::Open,
                [ready, up, well, serving, (True, "InWindow"), free],
            ),
            (
                "waiting",
                Loaded {
                    now: at("09:00:00"),
                    ..loaded(&wanted)
                },
                State::Waiting,
                [ready, up, well, serving, (False, "NotOpenYet"), free],
            ),
            (
                "closed",
                Loaded {
                    now: at("12:00:00"),
                    ..loaded(&wanted)
                },
                State::Closed,
                [ready, up, well, serving, (False, "Closed"), free],
            ),
            (
                "expired",
                Loaded {
                    now: at("12:00:00"),
                    ..missing.clone()
                },
                State::Closed,
                [
                    (True, "Over"),
                    up,
                    well,
                    (False, "Over"),
                    (False, "Closed"),
                    (False, "Over"),
                ],
            ),
            (
                "paused",
                with_numbers(&wanted, |numbers| numbers.status = StateStatus::Paused),
                State::Paused,
                [ready, up, well, serving, (False, "Paused"), free],
            ),
            (
                "sold out",
                with_numbers(&wanted, |numbers| numbers.taken = 100),
                State::SoldOut,
                [ready, up, well, serving, (True, "InWindow"), (True, "SoldOut")],
            ),
            (
                "lost",
                missing,
                State::Unavailable,
                [
                    (False, "StateMissing"),
                    working,
                    well,
                    (False, "StateMissing"),
                    (False, "StateMissing"),
                    dark,
                ],
            ),
            (
                "rebuilding",
                rebuilding,
                State::Unavailable,
                [
                    (False, "Rebuilding"),
                    working,
                    well,
                    (False, "Rebuilding"),
                    (False, "Rebuilding"),
                    dark,
                ],
            ),
            (
                "parked",
                with_row(&wanted, |row| row.parked = 2),
                State::Open,
                [ready, up, (True, "DeadLetters"), serving, (True, "InWindow"), free],
            ),
            (
                "the topic of claims was made anew",
                Loaded {
                    shortened: Some(PastEnd {
                        partition: 3,
                        consumed: 8,
                        end: 1,
                    }),
                    ..loaded(&wanted)
                },
                State::Unavailable,
                [
                    (False, "ClaimsTopicShortened"),
                    up,
                    (True, "ClaimsTopicShortened"),
                    serving,
                    (False, "ClaimsTopicShortened"),
                    free,
                ],
            ),
            (
                "Redis is out",
                redis_out(&wanted),
                State::Unknown,
                [
                    (Unknown, redis),
                    (Unknown, redis),
                    (True, redis),
                    (Unknown, redis),
                    (Unknown, redis),
                    dark,
                ],
            ),
            (
                "Postgres is out",
                postgres_out(&wanted),
                State::Unknown,
                [
                    (Unknown, postgres),
                    (Unknown, postgres),
                    (True, postgres),
                    (Unknown, postgres),
                    (Unknown, postgres),
                    dark,
                ],
            ),
        ] {
            assert_eq!(short(&loaded), expected, "{what}");
            let seen = Seen {
                loaded: &loaded,
                trouble: &[],
                verdict: None,
            };
            assert_eq!(super::state(&findings(&seen)), state, "{what}");
        }
    }

    #[test]
    fn trouble_degrades_and_only_what_stops_the_campaign_makes_it_not_ready() {
        let wanted = wanted();
        for (reason, ready) in [
            ("QuantityBelowTaken", Truth::True),
            ("Invalid", Truth::False),
            ("ApplyFailed", Truth::False),
        ] {
            let trouble = [Trouble {
                reason,
                message: "why".to_owned(),
            }];
            let found = found(&loaded(&wanted), &trouble, None);
            assert!(found.contains(&(DEGRADED, Truth::True, reason)), "{found:?}");
            assert_eq!(found[0].1, ready, "{reason}");
        }
    }

    #[test]
    fn the_equation_speaks_only_when_it_is_sure() {
        let wanted = wanted();
        let loaded = loaded(&wanted);
        let broken = Verdict::Broken(vec![Drift::Leaked { by: 3 }]);
        for (verdict, conserved) in [
            (None, None),
            (Some(&Verdict::Suspect), None),
            (Some(&Verdict::Balanced), Some((Truth::True, "Balanced"))),
            (Some(&broken), Some((Truth::False, "Leaked"))),
        ] {
            let found = found(&loaded, &[], verdict);
            let said = found
                .iter()
                .find(|(kind, ..)| *kind == CONSERVED)
                .map(|(_, truth, reason)| (*truth, *reason));
            assert_eq!(said, conserved, "{verdict:?}");
        }
        assert!(found(&loaded, &[], Some(&broken)).contains(&(DEGRADED, Truth::True, "NotConserved")));
    }

    #[test]
    fn times_change_with_the_status_alone() {
        let (start, later) = (at("10:00:00"), at("11:00:00"));
        let open = |truth: bool, reason, message: &str| Finding::new(OPEN, truth, reason, message);
        let kept = Finding::new(CONSERVED, true, "Balanced", "");
        let (first, news) = merge(&[], &[open(false, "NotOpenYet", "a"), kept], Some(1), start);
        assert_eq!(news.len(), 2);
        for (what, finding, time, is_news) in [
            ("the same", open(false, "NotOpenYet", "a"), start, false),
            ("another message", open(false, "NotOpenYet", "b"), start, false),
            ("another reason", open(false, "Paused", "a"), start, true),
            ("another status", open(true, "InWindow", "a"), later, true),
        ] {
            let (merged, news) = merge(&first, std::slice::from_ref(&finding), Some(2), later);
            assert_eq!(merged[0].last_transition_time, Time(time), "{what}");
            assert_eq!(
                (merged[0].message.as_str(), merged[0].observed_generation),
                (finding.message.as_str(), Some(2))
            );
            assert_eq!(!news.is_empty(), is_news, "{what}");
            // What nobody spoke of is kept as it was.
            assert_eq!(merged[1], first[1], "{what}");
        }
    }
}
