// SPDX-License-Identifier: Apache-2.0

//! Objects that failed, with the times of their retries, and those that were left for the next round.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use tokio::time::Instant;

use crate::{KeyBuf, Obj, Revision};

/// A retry.
pub(super) enum Pending<T> {
    /// The object as it is in the table by then, if its status id is still this one.
    Update(u64),
    Delete(Obj<T>),
}

struct Retry<T> {
    pending: Pending<T>,
    /// Revision of the change that failed first.
    revision: Revision,
    failures: u32,
    due: Instant,
    /// Distinguishes objects with equal due times.
    number: u64,
    /// `None` if it has not failed.
    error: Option<Arc<str>>,
    is_deferred: bool,
}

pub(super) struct Retries<T> {
    by_key: HashMap<KeyBuf, Retry<T>, foldhash::fast::RandomState>,
    /// Waiting ones by time; those being tried are not in it.
    queue: BTreeMap<(Instant, u64), KeyBuf>,
    revisions: BTreeSet<(Revision, u64)>,
    next: u64,
    min: Duration,
    max: Duration,
    failing: usize,
    /// Revisions of those that were left for the next round.
    deferred: BTreeSet<(Revision, u64)>,
}

impl<T> Retries<T> {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self {
            by_key: HashMap::default(),
            queue: BTreeMap::new(),
            revisions: BTreeSet::new(),
            next: 0,
            min: min.max(Duration::from_millis(1)),
            max: max.max(min),
            failing: 0,
            deferred: BTreeSet::new(),
        }
    }

    /// Objects that fail.
    pub(super) fn len(&self) -> usize {
        self.failing
    }

    /// Lowest revision that was left for the next round.
    pub(super) fn lowest_deferred(&self) -> Option<Revision> {
        self.deferred.first().map(|(revision, _)| *revision)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Forgets an object: it succeeded, changed or is gone.
    pub(super) fn clear(&mut self, key: &KeyBuf) {
        if let Some(retry) = self.by_key.remove(key) {
            self.queue.remove(&(retry.due, retry.number));
            self.revisions.remove(&(retry.revision, retry.number));
            self.failing -= usize::from(retry.error.is_some());
            self.deferred.remove(&(retry.revision, retry.number));
        }
    }

    /// Records a failure; returns the pause before the next attempt, which grows with each failure of an object in a row.
    pub(super) fn add(
        &mut self,
        now: Instant,
        key: KeyBuf,
        pending: Pending<T>,
        revision: Revision,
        error: Arc<str>,
    ) -> Duration {
        let (failures, first) = match self.by_key.get(&key) {
            Some(retry) => (retry.failures + 1, retry.revision),
            None => (1, revision),
        };
        self.clear(&key);
        let pause = self
            .min
            .saturating_mul(1u32 << (failures - 1).min(20))
            .min(self.max);
        let retry = Retry {
            pending,
            revision: first,
            failures,
            due: now + pause,
            number: self.next,
            error: Some(error),
            is_deferred: false,
        };
        self.insert(key, retry);
        pause
    }

    /// Keeps an object for the next round; what it failed of before stays.
    pub(super) fn defer(&mut self, now: Instant, key: KeyBuf, pending: Pending<T>, revision: Revision) {
        let known = self.by_key.get(&key);
        let retry = Retry {
            pending,
            revision: known.map_or(revision, |retry| retry.revision),
            failures: known.map_or(0, |retry| retry.failures),
            due: now,
            number: self.next,
            error: known.and_then(|retry| retry.error.clone()),
            is_deferred: true,
        };
        self.clear(&key);
        self.insert(key, retry);
    }

    fn insert(&mut self, key: KeyBuf, retry: Retry<T>) {
        self.next += 1;
        self.queue.insert((retry.due, retry.number), key.clone());
        if retry.error.is_some() {
            self.revisions.insert((retry.revision, retry.number));
            self.failing += 1;
        }
        if retry.is_deferred {
            self.deferred.insert((retry.revision, retry.number));
        }
        self.by_key.insert(key, retry);
    }

    /// Makes a waiting object due now.
    pub(super) fn hasten(&mut self, now: Instant, key: &KeyBuf) {
        if let Some(retry) = self.by_key.get_mut(key)
            && let Some(key) = self.queue.remove(&(retry.due, retry.number))
        {
            retry.due = now;
            self.queue.insert((now, retry.number), key);
        }
    }

    /// Takes one object that is due; it counts as failing until it is cleared or fails again.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(KeyBuf, &Pending<T>, Revision)> {
        let (&at, _) = self.queue.first_key_value().filter(|((due, _), _)| *due <= now)?;
        let key = self.queue.remove(&at)?;
        let retry = self.by_key.get(&key)?;
        Some((key, &retry.pending, retry.revision))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((due, _), _)| *due)
    }

    /// Lowest revision that fails.
    pub(super) fn lowest(&self) -> Option<Revision> {
        self.revisions.first().map(|(revision, _)| *revision)
    }

    /// Texts of up to `most` different errors, that of the oldest change first, with the number of objects that have it.
    pub(super) fn errors(&self, most: usize) -> Vec<(&str, usize)> {
        let mut by_text: HashMap<&str, ((Revision, u64), usize), foldhash::fast::RandomState> =
            HashMap::default();
        for retry in self.by_key.values() {
            let Some(error) = &retry.error else { continue };
            let age = (retry.revision, retry.number);
            let (first, count) = by_text.entry(error).or_insert((age, 0));
            *first = age.min(*first);
            *count += 1;
        }
        let mut errors: Vec<_> = by_text.into_iter().collect();
        errors.sort_unstable_by_key(|(_, (first, _))| *first);
        errors.truncate(most);
        errors
            .into_iter()
            .map(|(text, (_, count))| (text, count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut retries = Retries::<()>::new(Duration::from_millis(100), Duration::from_millis(500));
        let key = KeyBuf::of("a");
        let now = Instant::now();
        let mut fail = |key: &KeyBuf| {
            retries
                .add(now, key.clone(), Pending::Update(1), 7, "x".into())
                .as_millis()
        };

        assert_eq!([(); 5].map(|()| fail(&key)), [100, 200, 400, 500, 500]);
        assert_eq!(fail(&KeyBuf::of("b")), 100, "each object has its own pace");
        retries.clear(&key);
        assert_eq!(
            retries
                .add(now, key, Pending::Update(1), 9, "x".into())
                .as_millis(),
            100
        );
        assert_eq!((retries.lowest(), retries.len()), (Some(7), 2));
    }

    #[test]
    fn a_hastened_object_is_due_at_once_and_fails_on_as_before() {
        let mut retries = Retries::<()>::new(Duration::from_secs(1), Duration::from_secs(9));
        let now = Instant::now();
        let (key, other) = (KeyBuf::of("a"), KeyBuf::of("b"));
        retries.add(now, key.clone(), Pending::Update(1), 3, "x".into());
        retries.add(now, other.clone(), Pending::Update(2), 4, "x".into());

        retries.hasten(now, &key);
        retries.hasten(now, &KeyBuf::of("unknown"));
        assert_eq!(retries.pop(now).unwrap().0, key);
        retries.hasten(now, &key);
        assert!(retries.pop(now).is_none(), "it is being tried");
        let pause = retries.add(now, key.clone(), Pending::Update(1), 3, "x".into());

        assert_eq!(pause, Duration::from_secs(2));
        retries.clear(&key);
        retries.clear(&other);
        assert_eq!(
            (retries.len(), retries.next_due(), retries.lowest()),
            (0, None, None)
        );
    }

    #[test]
    fn a_deferred_object_is_due_at_once_and_no_failure() {
        let mut retries = Retries::<()>::new(Duration::from_secs(1), Duration::from_secs(9));
        let now = Instant::now();
        let (key, failed) = (KeyBuf::of("a"), KeyBuf::of("b"));
        retries.add(now, failed.clone(), Pending::Update(1), 3, "x".into());

        retries.defer(now, key.clone(), Pending::Update(2), 4);
        retries.defer(now, failed.clone(), Pending::Update(1), 9);

        assert_eq!((retries.len(), retries.lowest()), (1, Some(3)));
        assert_eq!(retries.errors(10), [("x", 1)]);
        assert_eq!(retries.pop(now).unwrap().0, key);
        assert_eq!(retries.pop(now).unwrap().0, failed);
        assert_eq!(retries.lowest_deferred(), Some(3), "until they are done");
        retries.clear(&key);
        let pause = retries.add(now, failed, Pending::Update(1), 9, "x".into());
        assert_eq!((pause, retries.lowest_deferred()), (Duration::from_secs(2), None));
    }

    #[test]
    fn only_due_objects_are_taken_and_stay_known() {
        let mut retries = Retries::<()>::new(Duration::from_millis(100), Duration::from_secs(1));
        let now = Instant::now();
        retries.add(now, KeyBuf::of("a"), Pending::Update(1), 3, "first".into());
        retries.add(now, KeyBuf::of("b"), Pending::Update(2), 2, "second".into());

        assert!(retries.pop(now).is_none());
        let later = now + Duration::from_millis(100);
        assert_eq!(retries.pop(later).unwrap().0, KeyBuf::of("a"));
        assert_eq!(retries.pop(later).unwrap().0, KeyBuf::of("b"));
        assert!(retries.pop(later).is_none());
        assert_eq!((retries.len(), retries.next_due()), (2, None));
        assert_eq!(retries.errors(10), [("second", 1), ("first", 1)]);
        assert_eq!(retries.errors(1), [("second", 1)]);
    }
}
