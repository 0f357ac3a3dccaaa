//! Finds partitions that deliver nothing although there is something. A client can fall silent, as seen after its topic was
//! made anew: its partitions then wait until the process is started again. Pure: no I/O, no clock.
//!
//! What is found here is a suspicion: the offsets before the end of a partition need not hold a record (a transaction's
//! marker has an offset of its own, and is given to nobody). Whoever acts on it looks first whether there is one, and says so.

use std::collections::HashMap;

use campaign::kafka::offsets::Watermarks;

/// Looks in a row that must find a partition, or a member, as it was.
pub const LOOKS: u32 = 3;
/// As many at most, for one that was found before and is still where it was.
pub const MOST_LOOKS: u32 = LOOKS << 7;

/// Looks that it takes the next time.
pub fn more_looks(looks: u32) -> u32 {
    looks.saturating_mul(2).min(MOST_LOOKS)
}

/// Where a partition of ours waits for its next record: the window's generation and the offset.
pub type Waiting = HashMap<i32, (u64, i64)>;

/// The looks so far at the partitions of one topic.
#[derive(Debug, Default)]
pub struct Silence {
    seen: HashMap<i32, ((u64, i64), u32)>,
    /// Where a partition was when its client was made anew, and the looks that it takes to find it there again. A new client
    /// gives its window another generation, and need not help: it is not made again and again for the same record.
    renewed: HashMap<i32, (i64, u32)>,
}

impl Silence {
    /// One more look. `waiting` was read before `watermarks`, so that what lies between the two is no news. Answers the
    /// partitions that count as silent; they are counted from the beginning again.
    pub fn look(&mut self, waiting: &Waiting, watermarks: &HashMap<i32, Watermarks>) -> Vec<i32> {
        // Behind where it was it is not yet past it: a window begins again where Postgres says.
        self.renewed
            .retain(|partition, (at, _)| waiting.get(partition).is_none_or(|(_, next)| next <= at));
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
            .filter_map(|(&partition, &(_, looks))| (looks >= self.takes(partition)).then_some(partition))
            .collect();
        silent.sort_unstable();
        if !silent.is_empty() {
            self.seen.clear();
        }
        silent
    }

    /// The client of these partitions is made anew: it takes twice as many looks to find them where they are now again.
    pub fn renewed(&mut self, partitions: &[i32], waiting: &Waiting) {
        for partition in partitions {
            let takes = more_looks(self.takes(*partition));
            if let Some((_, next)) = waiting.get(partition) {
                self.renewed.insert(*partition, (*next, takes));
            }
        }
    }

    fn takes(&self, partition: i32) -> u32 {
        self.renewed.get(&partition).map_or(LOOKS, |(_, takes)| *takes)
    }
}

/// Those of the places that windows await whose record the client has not handed over. A record on its way from the client to
/// its window waits for us: while Postgres is out, say. `handed_over`: the client's next offset by partition; `None`: it
/// could hand nothing over.
pub fn left_to_the_client(mut awaited: Waiting, handed_over: Option<&HashMap<i32, i64>>) -> Waiting {
    awaited.retain(|partition, (_, next)| {
        let handed_over = handed_over.and_then(|handed_over| handed_over.get(partition));
        handed_over == Some(next)
    });
    awaited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(silence: &mut Silence, (generation, next, low, high): (u64, i64, i64, i64)) -> Vec<i32> {
        let waiting = HashMap::from([(3, (generation, next))]);
        silence.look(&waiting, &HashMap::from([(3, Watermarks { low, high })]))
    }

    fn looks(looks: &[(u64, i64, i64, i64)]) -> Vec<Vec<i32>> {
        let mut silence = Silence::default();
        looks.iter().map(|&of| look(&mut silence, of)).collect()
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

    /// Looks after which the partition was found silent and given a new client, so a new generation.
    fn found_at(silence: &mut Silence, next: i64, looks: u32) -> Vec<u32> {
        let mut generation = 0;
        let mut found = Vec::new();
        for n in 1..=looks {
            let silent = look(silence, (generation, next, 0, 9));
            if !silent.is_empty() {
                silence.renewed(&silent, &HashMap::from([(3, (generation, next))]));
                found.push(n);
                generation += 1;
            }
        }
        found
    }

    #[test]
    fn a_partition_that_a_new_client_does_not_move_is_found_ever_more_rarely_until_it_moves() {
        let mut silence = Silence::default();
        assert_eq!(found_at(&mut silence, 5, 50), [3, 9, 21, 45]);
        assert_eq!(found_at(&mut silence, 4, 48), [48], "it has only begun again");
        assert_eq!(
            found_at(&mut silence, 6, 10),
            [3, 9],
            "it has moved: that client delivered"
        );
        let mut silence = Silence::default();
        let last = found_at(&mut silence, 5, 10 * MOST_LOOKS);
        assert_eq!(last[last.len() - 1] - last[last.len() - 2], MOST_LOOKS, "bounded");
    }

    #[test]
    fn a_partition_that_goes_and_comes_back_is_not_counted_anew() {
        let mut silence = Silence::default();
        assert_eq!(found_at(&mut silence, 5, 3), [3]);
        assert_eq!(silence.look(&HashMap::new(), &HashMap::new()), Vec::<i32>::new());
        assert_eq!(found_at(&mut silence, 5, 10), [6]);
    }

    #[test]
    fn a_record_on_its_way_to_its_window_is_not_waited_for_from_the_client() {
        let awaited = || HashMap::from([(3, (1, 5))]);
        for (what, handed_over, left) in [
            ("nothing has come", Some(HashMap::from([(3, 5)])), true),
            ("it waits in the channel", Some(HashMap::from([(3, 6)])), false),
            ("the channel is full", None, false),
            ("the partition is no longer ours", Some(HashMap::new()), false),
        ] {
            let found = left_to_the_client(awaited(), handed_over.as_ref());
            assert_eq!(!found.is_empty(), left, "{what}");
        }
    }
}
