// SPDX-License-Identifier: Apache-2.0

//! The most frequent items of a sequence, in bounded memory.

use std::{collections::HashMap, hash::Hash};

/// Counts items. Of a sequence with more different ones than there is room for it keeps those that make up more than one
/// part in `room + 1` of it, and counts too few of them: a second pass then counts what was kept (Misra and Gries, 1982).
#[derive(Debug)]
pub(crate) struct Frequent<T> {
    counts: HashMap<T, u32>,
    room: usize,
    is_exact: bool,
}

impl<T: Eq + Hash> Frequent<T> {
    /// Room for so many different items.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            counts: HashMap::new(),
            room,
            is_exact: true,
        }
    }

    /// The next item of the first pass.
    pub(crate) fn add(&mut self, item: T) {
        if let Some(count) = self.counts.get_mut(&item) {
            *count += 1;
        } else if self.counts.len() < self.room {
            self.counts.insert(item, 1);
        } else {
            // Each of these takes back what as many items have added: a pass is linear all the same.
            self.is_exact = false;
            self.counts.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
        }
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.is_exact
    }

    pub(crate) fn count_again(&mut self) {
        self.counts.values_mut().for_each(|count| *count = 0);
    }

    /// The next item of the second pass.
    pub(crate) fn add_known(&mut self, item: &T) {
        if let Some(count) = self.counts.get_mut(item) {
            *count += 1;
        }
    }

    /// What is left, with its counts.
    pub(crate) fn into_counts(self) -> impl Iterator<Item = (T, u32)> {
        self.counts.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(items: &[u32], room: usize) -> (Vec<(u32, u32)>, bool, usize) {
        let mut frequent = Frequent::new(room);
        let mut most = 0;
        for item in items {
            frequent.add(*item);
            most = most.max(frequent.counts.len());
        }
        let is_exact = frequent.is_exact();
        if !is_exact {
            frequent.count_again();
            items.iter().for_each(|item| frequent.add_known(item));
        }
        let mut counts: Vec<_> = frequent.into_counts().collect();
        counts.sort_by_key(|(item, count)| (std::cmp::Reverse(*count), *item));
        (counts, is_exact, most)
    }

    #[test]
    fn with_room_for_all_everything_is_counted() {
        let (counts, is_exact, _) = counts(&[1, 2, 1, 3, 1, 2], 3);
        assert_eq!(counts, [(1, 3), (2, 2), (3, 1)]);
        assert!(is_exact);
    }

    #[test]
    fn frequent_items_are_kept_among_many_others_and_counted_exactly() {
        // 1000 others, each once, and between them three that come often.
        let others = (1000..2000).flat_map(|other| [other, other % 3]);
        let items: Vec<u32> = others.collect();

        let (counts, is_exact, most) = counts(&items, 8);

        assert!(!is_exact && most <= 8, "{most}");
        assert_eq!(counts[..3], [(1, 334), (0, 333), (2, 333)]);
    }

    #[test]
    fn whatever_the_order_what_is_more_than_its_part_is_kept() {
        for start in 0..5 {
            // One in five, with room for four.
            let mut items: Vec<u32> = (0..40).map(|n| if n < 9 { 7 } else { 100 + n }).collect();
            items.rotate_left(start * 8);
            let (counts, _, _) = counts(&items, 4);
            assert_eq!(counts[0], (7, 9), "{start}");
        }
    }
}
