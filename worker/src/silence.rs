//! Finds partitions that deliver nothing although there is something. A client can fall silent, as seen after its topic was
//! made anew: its partitions then wait until the process is started again. Pure: no I/O, no clock.

use std::collections::HashMap;

use campaign::kafka::offsets::Watermarks;

/// Looks in a row that must find a partition as it was.
pub const LOOKS: u32 = 3;

/// Where a partition of ours waits for its next record: the window's generation and the offset.
pub type Waiting = HashMap<i32, (u64, i64)>;

/// The looks so far at the partitions of one topic.
#[derive(Debug, Default)]
pub struct Silence {
    seen: HashMap<i32, ((u64, i64), u32)>,
}

impl Silence {
    /// One more look. `waiting` was read before `watermarks`, so that what lies between the two is no news. Answers the
    /// partitions that count as silent; they are counted from the beginning again.
    pub fn look(&mut self, waiting: &Waiting, watermarks: &HashMap<i32, Watermarks>) -> Vec<i32> {
        let behind = waiting.iter().filter(|(partition, (_, next))| {
            // What retention has removed does not come.
            watermarks
                .get(partition)
                .is_some_and(|marks| marks.high > marks.low.max(*next))
        });
        self.seen = behind
            .map(|(&partition, &place)| {
                let before = self.seen.get(&partition).filter(|(before, _)| *before == place);
                (partition, (place, before.map_or(1, |(_, looks)| looks + 1)))
            })
            .collect();
        let mut silent: Vec<i32> = self
            .seen
            .iter()
            .filter_map(|(&partition, &(_, looks))| (looks >= LOOKS).then_some(partition))
            .collect();
        silent.sort_unstable();
        if !silent.is_empty() {
            self.seen.clear();
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(looks: &[(u64, i64, i64, i64)]) -> Vec<Vec<i32>> {
        let mut silence = Silence::default();
        looks
            .iter()
            .map(|&(generation, next, low, high)| {
                let waiting = HashMap::from([(3, (generation, next))]);
                silence.look(&waiting, &HashMap::from([(3, Watermarks { low, high })]))
            })
            .collect()
    }

    #[test]
    fn only_a_partition_that_stays_where_it_is_before_its_end_is_silent() {
        for (what, of, silent) in [
            ("nothing comes", [(1, 5, 0, 9), (1, 5, 0, 9), (1, 5, 0, 12)], true),
            ("something comes", [(1, 5, 0, 9), (1, 6, 0, 9), (1, 6, 0, 9)], false),
            ("it began again", [(1, 5, 0, 9), (2, 5, 0, 9), (2, 5, 0, 9)], false),
            ("all is read", [(1, 9, 0, 9), (1, 9, 0, 9), (1, 9, 0, 9)], false),
            ("the rest is removed", [(1, 5, 9, 9), (1, 5, 9, 9), (1, 5, 9, 9)], false),
            (
                "it was full in between",
                [(1, 5, 0, 9), (1, 5, 0, 5), (1, 5, 0, 9)],
                false,
            ),
        ] {
            let found = looks(&of);
            assert_eq!(found.last() == Some(&vec![3]), silent, "{what}: {found:?}");
        }
    }

    #[test]
    fn what_was_silent_is_counted_from_the_beginning() {
        let found = looks(&[(1, 5, 0, 9); 5]);
        assert_eq!(found, [vec![], vec![], vec![3], vec![], vec![]]);
    }
}
