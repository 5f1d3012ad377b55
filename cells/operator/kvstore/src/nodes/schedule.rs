// SPDX-License-Identifier: Apache-2.0

//! When which node is judged.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Names that are due, each once.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    by_time: BTreeSet<(Instant, Arc<str>)>,
    entries: HashMap<Arc<str>, Entry>,
}

#[derive(Debug)]
struct Entry {
    due: Instant,
    retries: u32,
}

impl Schedule {
    /// Schedules a name, unless it is due before.
    pub(crate) fn add(&mut self, name: &Arc<str>, due: Instant) {
        let retries = match self.entries.get(name) {
            Some(entry) if entry.due <= due => return,
            Some(entry) => entry.retries,
            None => 0,
        };
        self.set(name, Entry { due, retries });
    }

    /// Schedules a name again, after a pause that doubles each time, up to `max`.
    pub(crate) fn retry(&mut self, name: &Arc<str>, now: Instant, first: Duration, max: Duration) {
        let retries = self.entries.get(name).map_or(0, |entry| entry.retries);
        let pause = first.saturating_mul(2_u32.saturating_pow(retries)).min(max);
        let entry = Entry {
            due: now + pause,
            retries: retries.saturating_add(1),
        };
        self.set(name, entry);
    }

    /// Removes a name, and what is known of its retries.
    pub(crate) fn remove(&mut self, name: &str) {
        if let Some((name, entry)) = self.entries.remove_entry(name) {
            self.by_time.remove(&(entry.due, name));
        }
    }

    /// The name that is due first, and when.
    pub(crate) fn first(&self) -> Option<(Instant, Arc<str>)> {
        self.by_time.first().cloned()
    }

    fn set(&mut self, name: &Arc<str>, entry: Entry) {
        let due = entry.due;
        if let Some(old) = self.entries.insert(name.clone(), entry) {
            self.by_time.remove(&(old.due, name.clone()));
        }
        self.by_time.insert((due, name.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_earlier_time_of_a_name_counts() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        schedule.add(&a, now + SECOND * 60);
        schedule.add(&b, now + SECOND * 30);
        assert_eq!(schedule.first(), Some((now + SECOND * 30, b.clone())));

        schedule.add(&a, now);
        schedule.add(&b, now + SECOND * 90);

        assert_eq!(schedule.first(), Some((now, a.clone())));
        schedule.remove("a");
        assert_eq!(schedule.first(), Some((now + SECOND * 30, b)));
        schedule.remove("b");
        assert_eq!((schedule.first(), schedule.by_time.len()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_of_retries_double_until_the_name_is_removed() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let name: Arc<str> = "a".into();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.retry(&name, now, SECOND, SECOND * 120);
            pauses.extend(schedule.first().map(|(due, _)| (due - now).as_secs()));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 120, 120]);

        schedule.remove("a");
        schedule.retry(&name, now, SECOND, SECOND * 120);

        assert_eq!(schedule.first(), Some((now + SECOND, name)));
    }
}
