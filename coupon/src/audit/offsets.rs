//! What was consumed against what there is.

use std::collections::{BTreeMap, HashMap};

use campaign::kafka::offsets::Watermarks;

use super::{
    Expect,
    finding::{FindingKind, Findings},
};

/// How a topic stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicOffsets {
    /// Next offset by partition, from Postgres.
    pub consumed: HashMap<i32, i64>,
    /// First and next offset by partition, from Kafka.
    pub marks: HashMap<i32, Watermarks>,
}

impl TopicOffsets {
    /// Where a partition will be read next: where nothing is consumed, from its beginning.
    pub fn next(&self, partition: i32) -> i64 {
        let first = self.marks.get(&partition).map_or(0, |marks| marks.low);
        self.consumed.get(&partition).copied().unwrap_or(first)
    }

    /// Records that wait, of all partitions.
    pub fn lag(&self) -> i64 {
        self.marks
            .iter()
            .map(|(&partition, marks)| (marks.high - self.next(partition)).max(0))
            .sum()
    }

    /// Whether Kafka still has every record since the beginning.
    pub fn whole_log(&self) -> bool {
        self.marks.values().all(|marks| marks.low == 0)
    }

    /// What does not fit. `waiting` names the lag.
    pub fn compare(&self, topic: &str, waiting: FindingKind, expect: Expect, findings: &mut Findings) {
        let marks: BTreeMap<i32, Watermarks> = self.marks.iter().map(|(&id, &marks)| (id, marks)).collect();
        for (partition, marks) in marks {
            let next = self.next(partition);
            let text = format!(
                "{topic} partition {partition}: consumed {next}, records {} to {}",
                marks.low, marks.high
            );
            if next > marks.high {
                findings.add(FindingKind::ConsumedPastEnd, &text);
            } else if next < marks.low {
                findings.add(FindingKind::RecordsLost, &text);
            } else if next < marks.high && expect == Expect::Quiet {
                findings.add(waiting, &text);
            }
        }
        for (&partition, &next) in &self.consumed {
            if next > 0 && !self.marks.contains_key(&partition) {
                let text = format_args!("{topic} partition {partition}: consumed {next}, Kafka does not have it");
                findings.add(FindingKind::ConsumedPastEnd, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(consumed: &[(i32, i64)], low: i64, high: i64, expect: Expect) -> Vec<FindingKind> {
        let offsets = TopicOffsets {
            consumed: consumed.iter().copied().collect(),
            marks: HashMap::from([(0, Watermarks { low, high })]),
        };
        let mut findings = Findings::of(None);
        offsets.compare("t", FindingKind::ClaimsNotConsumed, expect, &mut findings);
        findings.into_list().into_iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn consumed_is_the_end_and_neither_before_nor_after_it() {
        use Expect::{Quiet, Running};
        assert_eq!(found(&[(0, 5)], 0, 5, Quiet), []);
        assert_eq!(found(&[], 0, 0, Quiet), []);
        assert_eq!(found(&[(0, 4)], 0, 5, Quiet), [FindingKind::ClaimsNotConsumed]);
        assert_eq!(found(&[(0, 4)], 0, 5, Running), []);
        assert_eq!(found(&[(0, 6)], 0, 5, Running), [FindingKind::ConsumedPastEnd]);
        assert_eq!(found(&[(0, 2)], 3, 5, Running), [FindingKind::RecordsLost]);
        assert_eq!(found(&[(0, 5), (1, 1)], 0, 5, Quiet), [FindingKind::ConsumedPastEnd]);
    }
}
