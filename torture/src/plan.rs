//! Draws the faults of a run from its seed. The same seed gives the same faults at the same times; what they meet differs
//! from run to run, since processes and servers are real.

use std::{fmt, str::FromStr, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::Serialize;

/// Intakes of a run.
pub const INTAKES: usize = 2;
/// Workers of a run.
pub const WORKERS: usize = 2;

/// A process of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// An intake, by its number.
    Intake(usize),
    /// A worker, by its number.
    Worker(usize),
}

impl Target {
    /// All of them, intakes first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..INTAKES).map(Self::Intake).chain((0..WORKERS).map(Self::Worker))
    }

    /// Its place among all of them.
    pub fn index(self) -> usize {
        match self {
            Self::Intake(i) => i,
            Self::Worker(i) => INTAKES + i,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Intake(_) => "intake",
            Self::Worker(_) => "worker",
        }
    }
}

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// The primary.
    Redis,
    /// The broker.
    Kafka,
    /// The database.
    Postgres,
}

impl Server {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Redis, Self::Kafka, Self::Postgres];

    /// Its place in [`Server::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What the wire between a process and a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Connections break, and new ones are refused.
    Cut,
    /// Everything takes longer.
    Delay(Duration),
    /// Requests wait and come later.
    HoldRequests,
    /// Answers wait and come later.
    HoldReplies,
    /// Answers are lost: what was asked is done.
    LoseReplies,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// SIGKILL; it starts again after the time.
    Kill(Target, Duration),
    /// SIGSTOP, and SIGCONT after the time.
    Freeze(Target, Duration),
    /// SIGTERM, and a new start.
    Restart(Target),
    /// A new start with a clock that is so many seconds off, until its next start.
    ShiftClock(Target, i64),
    /// FLUSHALL.
    RedisFlush,
    /// Killed, and started again without anything.
    RedisRestartEmpty,
    /// Killed, and started again from a snapshot some seconds old.
    RedisRestartOld,
    /// The replica hears nothing for the time, the primary dies, and the replica takes over.
    RedisPromotion(Duration),
    /// SIGSTOP for the time.
    RedisStall(Duration),
    /// SCRIPT FLUSH.
    RedisScriptsForgotten,
    /// Killed, and started again after the time.
    KafkaKill(Duration),
    /// SIGSTOP for the time.
    KafkaStall(Duration),
    /// Everything that the broker says comes later (first), for the time (second).
    KafkaSlow(Duration, Duration),
    /// The broker stores what an intake sends and its acknowledgements are lost, for the time.
    KafkaAcksLost(usize, Duration),
    /// What an intake sends to the broker waits for the time and then comes, when everybody has given it up.
    KafkaRecordsLate(usize, Duration),
    /// Killed, and started again.
    PostgresRestart,
    /// Answers of the database to a worker are lost for moments, and its connections cut, so many times.
    PostgresCutAtCommit(usize, u32),
    /// Everything that the database says comes later (first), for the time (second).
    PostgresSlow(Duration, Duration),
    /// An older copy is put back after the time, as a failover that lost its last seconds; then the runbook.
    PostgresPutBack(Duration),
    /// The wire between a process and a server, for the time.
    Network(Target, Server, Wire, Duration),
}

/// The names under which faults are counted.
pub const KINDS: [&str; 27] = [
    "kill-intake",
    "kill-worker",
    "freeze-intake",
    "freeze-worker",
    "restart-intake",
    "restart-worker",
    "clock-intake",
    "clock-worker",
    "redis-flush",
    "redis-restart-empty",
    "redis-restart-old",
    "redis-promotion",
    "redis-stall",
    "redis-scripts-forgotten",
    "kafka-kill",
    "kafka-stall",
    "kafka-slow",
    "kafka-acks-lost",
    "kafka-records-late",
    "postgres-restart",
    "postgres-cut-at-commit",
    "postgres-slow",
    "postgres-put-back",
    "network-cut",
    "network-delay",
    "network-hold",
    "network-lose-replies",
];

/// Dealt once a run: each shuts everything out for seconds, and a door that is always shut proves nothing.
const HEAVY: [&str; 9] = [
    "redis-flush",
    "redis-restart-empty",
    "redis-restart-old",
    "redis-promotion",
    "redis-stall",
    "kafka-kill",
    "kafka-stall",
    "postgres-restart",
    "postgres-put-back",
];

impl Fault {
    /// The name under which it is counted.
    pub fn kind(self) -> &'static str {
        let of = |target: Target, intake, worker| if target.word() == "intake" { intake } else { worker };
        match self {
            Self::Kill(target, _) => of(target, "kill-intake", "kill-worker"),
            Self::Freeze(target, _) => of(target, "freeze-intake", "freeze-worker"),
            Self::Restart(target) => of(target, "restart-intake", "restart-worker"),
            Self::ShiftClock(target, _) => of(target, "clock-intake", "clock-worker"),
            Self::RedisFlush => "redis-flush",
            Self::RedisRestartEmpty => "redis-restart-empty",
            Self::RedisRestartOld => "redis-restart-old",
            Self::RedisPromotion(_) => "redis-promotion",
            Self::RedisStall(_) => "redis-stall",
            Self::RedisScriptsForgotten => "redis-scripts-forgotten",
            Self::KafkaKill(_) => "kafka-kill",
            Self::KafkaStall(_) => "kafka-stall",
            Self::KafkaSlow(..) => "kafka-slow",
            Self::KafkaAcksLost(..) => "kafka-acks-lost",
            Self::KafkaRecordsLate(..) => "kafka-records-late",
            Self::PostgresRestart => "postgres-restart",
            Self::PostgresCutAtCommit(..) => "postgres-cut-at-commit",
            Self::PostgresSlow(..) => "postgres-slow",
            Self::PostgresPutBack(_) => "postgres-put-back",
            Self::Network(_, _, Wire::Cut, _) => "network-cut",
            Self::Network(_, _, Wire::Delay(_), _) => "network-delay",
            Self::Network(_, _, Wire::HoldRequests | Wire::HoldReplies, _) => "network-hold",
            Self::Network(_, _, Wire::LoseReplies, _) => "network-lose-replies",
        }
    }
}

/// A fault and when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Since the first claim.
    pub at: Duration,
    /// What.
    pub fault: Fault,
}

/// Between two faults, in ms.
const PAUSE: std::ops::Range<u64> = 400..2_000;
/// As [`PAUSE`], where kinds were chosen: always the same server would be out all the time.
const PAUSE_OF_CHOSEN: std::ops::Range<u64> = 1_000..5_000;
/// What hangs when the database is to be put back is healed by then.
const HEALED_WITHIN: Duration = Duration::from_secs(3);
/// Before the first fault, so that there is something to lose.
const CALM: Duration = Duration::from_secs(2);

/// Kinds of faults that were chosen: comma-separated names of [`KINDS`]. All, where none was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChosenKinds(Vec<&'static str>);

/// A text that names no kinds.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no kind of fault: choose from {all}, with commas between", all = KINDS.join(", "))]
pub struct ChosenKindsError(String);

impl FromStr for ChosenKinds {
    type Err = ChosenKindsError;

    fn from_str(text: &str) -> Result<Self, ChosenKindsError> {
        let kind = |name: &str| KINDS.into_iter().find(|kind| *kind == name.trim());
        let kinds = text
            .split(',')
            .map(|name| kind(name).ok_or_else(|| ChosenKindsError(name.to_owned())));
        kinds.collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for ChosenKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl ChosenKinds {
    fn pause(&self) -> std::ops::Range<u64> {
        if self.0.is_empty() { PAUSE } else { PAUSE_OF_CHOSEN }
    }

    fn deal(&self, kind: &str, first_deck: bool) -> bool {
        if self.0.is_empty() {
            first_deck || !HEAVY.contains(&kind)
        } else {
            self.0.contains(&kind)
        }
    }
}

/// The faults of a run. Kinds are dealt like cards, so that each comes about equally often; `clocks`: whether clocks can
/// be shifted here. Nothing is inflicted where none of the chosen kinds can be.
pub fn plan(seed: u64, length: Duration, chosen: &ChosenKinds, clocks: bool) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut deck: Vec<&'static str> = Vec::new();
    let mut first_deck = true;
    // A broker takes up to half a run to come up again: not in every run.
    let kafka_dies = random.random_bool(0.7);
    let mut steps = Vec::new();
    let mut at = CALM;
    while at < length {
        if deck.is_empty() {
            deck = KINDS
                .into_iter()
                .filter(|kind| clocks || !kind.starts_with("clock"))
                .filter(|kind| chosen.deal(kind, first_deck))
                .filter(|kind| *kind != "kafka-kill" || kafka_dies)
                .collect();
            deck.shuffle(&mut random);
            first_deck = false;
        }
        if let Some(kind) = deck.pop() {
            let fault = draw(kind, &mut random);
            steps.push(Step { at, fault });
            if let Fault::PostgresPutBack(after) = fault {
                // Nothing may hang meanwhile, but something may die.
                let target = Target::Worker(random.random_range(0..WORKERS));
                let dies = Fault::Kill(target, Duration::from_millis(random.random_range(0..500)));
                at += HEALED_WITHIN + after.mul_f64(random.random_range(0.0..1.0));
                steps.push(Step { at, fault: dies });
                at += after;
            }
        }
        at += Duration::from_millis(random.random_range(chosen.pause()));
    }
    steps
}

fn draw(kind: &str, random: &mut StdRng) -> Fault {
    let millis = |random: &mut StdRng, range: std::ops::Range<u64>| Duration::from_millis(random.random_range(range));
    let intake = random.random_range(0..INTAKES);
    let worker = random.random_range(0..WORKERS);
    let any = if random.random_bool(0.5) {
        Target::Intake(intake)
    } else {
        Target::Worker(worker)
    };
    let server = Server::ALL[random.random_range(0..Server::ALL.len())];
    // From shorter than any time-out to longer than leases and publish timeouts together.
    let outage = millis(random, 200..4_000);
    let hour = if random.random_bool(0.5) { 3_600 } else { -3_600 };
    match kind {
        "kill-intake" => Fault::Kill(Target::Intake(intake), millis(random, 0..1_500)),
        "kill-worker" => Fault::Kill(Target::Worker(worker), millis(random, 0..1_500)),
        "freeze-intake" => Fault::Freeze(Target::Intake(intake), millis(random, 300..6_500)),
        "freeze-worker" => Fault::Freeze(Target::Worker(worker), millis(random, 300..6_500)),
        "restart-intake" => Fault::Restart(Target::Intake(intake)),
        "restart-worker" => Fault::Restart(Target::Worker(worker)),
        "clock-intake" => Fault::ShiftClock(Target::Intake(intake), hour),
        "clock-worker" => Fault::ShiftClock(Target::Worker(worker), hour),
        "redis-flush" => Fault::RedisFlush,
        "redis-restart-empty" => Fault::RedisRestartEmpty,
        "redis-restart-old" => Fault::RedisRestartOld,
        "redis-promotion" => Fault::RedisPromotion(millis(random, 50..1_500)),
        "redis-stall" => Fault::RedisStall(millis(random, 200..4_000)),
        "redis-scripts-forgotten" => Fault::RedisScriptsForgotten,
        "kafka-kill" => Fault::KafkaKill(millis(random, 0..2_000)),
        "kafka-stall" => Fault::KafkaStall(millis(random, 300..4_000)),
        "kafka-slow" => Fault::KafkaSlow(millis(random, 50..700), outage),
        "kafka-acks-lost" => Fault::KafkaAcksLost(intake, outage),
        // Longer than a publish and its margin: the sweeper comes first.
        "kafka-records-late" => Fault::KafkaRecordsLate(intake, millis(random, 1_500..4_500)),
        "postgres-restart" => Fault::PostgresRestart,
        "postgres-cut-at-commit" => Fault::PostgresCutAtCommit(worker, random.random_range(2..12)),
        "postgres-slow" => Fault::PostgresSlow(millis(random, 10..300), outage),
        "postgres-put-back" => Fault::PostgresPutBack(millis(random, 1_500..5_000)),
        "network-cut" => Fault::Network(any, server, Wire::Cut, outage),
        "network-delay" => Fault::Network(any, server, Wire::Delay(millis(random, 20..900)), outage),
        "network-hold" if random.random_bool(0.5) => Fault::Network(any, server, Wire::HoldRequests, outage),
        "network-hold" => Fault::Network(any, server, Wire::HoldReplies, outage),
        _ => Fault::Network(any, server, Wire::LoseReplies, outage),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn planned(seed: u64, clocks: bool) -> Vec<Step> {
        plan(seed, MINUTE, &ChosenKinds::default(), clocks)
    }

    #[test]
    fn a_seed_always_gives_the_same_faults() {
        assert_eq!(planned(7, true), planned(7, true));
        assert_ne!(planned(7, true), planned(8, true));
    }

    #[test]
    fn a_minute_has_every_kind_of_fault_but_perhaps_a_dead_broker() {
        for seed in 0..50 {
            let kinds: BTreeSet<&str> = planned(seed, true).iter().map(|step| step.fault.kind()).collect();
            let missing: Vec<&&str> = KINDS
                .iter()
                .filter(|kind| !kinds.contains(**kind) && **kind != "kafka-kill")
                .collect();
            assert!(missing.is_empty(), "seed {seed} lacks {missing:?}");
        }
    }

    #[test]
    fn where_clocks_cannot_be_shifted_none_is() {
        let steps = planned(1, false);
        assert!(steps.iter().all(|step| !step.fault.kind().starts_with("clock")));
    }

    #[test]
    fn only_what_was_chosen_is_inflicted_and_again_and_again() {
        let chosen: ChosenKinds = "redis-flush, network-hold".parse().unwrap();
        let steps = plan(1, MINUTE, &chosen, true);
        let flushes = steps.iter().filter(|step| step.fault == Fault::RedisFlush).count();
        assert!(flushes > 5, "{flushes}");
        for step in steps {
            assert!(["redis-flush", "network-hold"].contains(&step.fault.kind()), "{step:?}");
        }
    }

    #[test]
    fn a_kind_that_is_not_there_is_refused_by_its_name() {
        for bad in ["redis-flush,flood", "flood", ""] {
            let error = bad.parse::<ChosenKinds>().unwrap_err().to_string();
            assert!(error.contains("network-lose-replies"), "{error}");
        }
    }
}
