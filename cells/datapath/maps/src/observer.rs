// SPDX-License-Identifier: Apache-2.0

//! What is known of the writes of a map: their number, those that failed, the last of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use skep_base_metrics::{CounterVec, GaugeVec, Metrics};
use skep_bpf_maps::Family;
use skep_bpf_sys::{
    RawMap,
    map::{MapObserver, RawFailure},
};
use tokio::time::Instant;

use crate::buffer::{Action, BufferSize, EventBuffer};

/// Most failed entries of a map that are remembered.
const MOST_FAILED: usize = 4096;
/// How long an entry that could not be inserted is remembered after its owner has given it back: longer than owners
/// take to try again.
const GIVEN_BACK: Duration = Duration::from_secs(120);

/// Metrics of the maps; label `map_name` is the pinned name without `cilium_`.
#[derive(Debug, Metrics)]
#[metrics(prefix = "bpf_map")]
pub(crate) struct MapMetrics {
    /// Operations on BPF maps.
    #[metric(name = "ops_total", labels = ["map_name", "operation", "outcome"])]
    operations: CounterVec,
    /// Fill ratio of a BPF map; updated every 5 minutes (`lb-pressure-metrics-interval`), of conntrack
    /// and NAT maps every 30 seconds.
    #[metric(labels = ["map_name"])]
    pressure: GaugeVec,
}

impl MapMetrics {
    pub(crate) fn set_pressure(&self, name: &str, entries: u32, max: u32) {
        self.set_pressure_of(short_name(name), entries, max, -1.0);
    }

    /// As [`set_pressure`](Self::set_pressure), by the label; the series is there above a ratio.
    pub(crate) fn set_pressure_of(&self, label: &str, entries: u32, max: u32, threshold: f64) {
        if max == 0 {
            return;
        }
        match f64::from(entries) / f64::from(max) {
            ratio if ratio > threshold => self.pressure.with([label]).set(ratio),
            _ => _ = self.pressure.remove([label]),
        }
    }

    fn count(&self, name: &str, operation: &str, total: usize, failed: usize) {
        for (outcome, entries) in [("success", total - failed), ("fail", failed)] {
            if entries > 0 {
                let labels = [short_name(name), operation, outcome];
                self.operations.with(labels).add(entries as f64);
            }
        }
    }
}

fn short_name(name: &str) -> &str {
    name.strip_prefix("cilium_").unwrap_or(name)
}

/// A write that failed, and was not repeated with success.
#[derive(Debug, Clone)]
pub struct FailedEntry {
    /// What was tried.
    pub action: Action,
    /// The value that is not there; empty for a deletion.
    pub value: Vec<u8>,
    /// What the kernel said.
    pub error: String,
    /// When the owner deleted what could not be inserted: it makes room, and tries again.
    given_back: Option<Instant>,
}

/// Observes one map.
pub(crate) struct MapLog {
    family: &'static Family,
    metrics: Arc<MapMetrics>,
    failed: Mutex<Failed>,
    events: Option<EventBuffer>,
}

/// Entries whose last write failed, by key.
#[derive(Debug, Default)]
struct Failed {
    entries: BTreeMap<Vec<u8>, FailedEntry>,
    /// When the first of them was given back, or earlier.
    given_back: Option<Instant>,
}

impl Failed {
    /// Forgets entries that were given back long ago. Looks at them only if there is one: every write to a full map fails, and
    /// would else look at thousands.
    fn forget_old(&mut self, now: Instant) {
        let is_old = |since: Instant| now.duration_since(since) > GIVEN_BACK;
        if !self.given_back.is_some_and(is_old) {
            return;
        }
        self.entries
            .retain(|_, entry| !entry.given_back.is_some_and(is_old));
        self.given_back = self.entries.values().filter_map(|entry| entry.given_back).min();
    }

    /// The owner has deleted an entry.
    fn deleted(&mut self, key: &[u8], now: Instant) {
        match self.entries.get_mut(key) {
            Some(entry) if entry.action == Action::Update => {
                entry.given_back.get_or_insert(now);
                self.given_back.get_or_insert(now);
            }
            _ => drop(self.entries.remove(key)),
        }
    }

    fn failed(&mut self, key: &[u8], entry: FailedEntry) {
        if self.entries.len() < MOST_FAILED || self.entries.contains_key(key) {
            self.entries.insert(key.to_owned(), entry);
        }
    }
}

impl MapLog {
    pub(crate) fn new(family: &'static Family, size: Option<BufferSize>, metrics: Arc<MapMetrics>) -> Self {
        Self {
            family,
            metrics,
            failed: Mutex::default(),
            events: size.map(EventBuffer::new),
        }
    }

    /// Entries whose last write failed, by key.
    pub(crate) fn failed(&self) -> BTreeMap<Vec<u8>, FailedEntry> {
        let mut failed = self.failed.lock();
        failed.forget_old(Instant::now());
        failed.entries.clone()
    }

    /// The last writes, if they are kept.
    pub(crate) fn events(&self) -> Option<&EventBuffer> {
        self.events.as_ref()
    }

    fn note(&self, action: Action, keys: &[u8], values: &[u8], value_len: usize, failures: &[RawFailure]) {
        let key_len = self.family.key.size as usize;
        let total = keys.len() / key_len;
        self.metrics
            .count(self.family.name, action.name(), total, failures.len());
        let mut failed = self.failed.lock();
        if failures.is_empty() && failed.entries.is_empty() && self.events.is_none() {
            return;
        }
        let now = Instant::now();
        if failed.entries.len() >= MOST_FAILED {
            failed.forget_old(now);
        }
        let mut failures = failures.iter().peekable();
        for (index, key) in keys.chunks_exact(key_len).enumerate() {
            let value = values
                .get(index * value_len..(index + 1) * value_len)
                .unwrap_or_default();
            let error = failures
                .next_if(|failure| failure.index == index)
                .map(|failure| failure.error.to_string());
            if let Some(events) = &self.events {
                events.push(action, key, value, error.clone());
            }
            match (error, action) {
                (None, Action::Update) => drop(failed.entries.remove(key)),
                (None, Action::Delete) => failed.deleted(key, now),
                (Some(error), _) => {
                    let entry = FailedEntry {
                        action,
                        value: value.to_owned(),
                        error,
                        given_back: None,
                    };
                    failed.failed(key, entry);
                }
            }
        }
    }
}

impl MapObserver for MapLog {
    fn updated(&self, map: &dyn RawMap, keys: &[u8], values: &[u8], failures: &[RawFailure]) {
        self.note(Action::Update, keys, values, map.value_len(), failures);
    }

    fn deleted(&self, _: &dyn RawMap, keys: &[u8], failures: &[RawFailure]) {
        self.note(Action::Delete, keys, &[], 0, failures);
    }
}

#[cfg(test)]
mod tests {
    use skep_base_metrics::{MetricSet, Registry, exposition};
    use skep_bpf_maps::{MapSizes, lb};
    use skep_bpf_sys::{Map, MemoryMap, map::ObservedMap};

    use super::*;

    #[test]
    fn operations_are_counted_and_failures_remembered_until_they_succeed() {
        let metrics = Arc::new(MapMetrics::default());
        let log = Arc::new(MapLog::new(&lb::BACKENDS4.family, None, metrics.clone()));
        let spec = lb::BACKENDS4.spec(&MapSizes::default().with(lb::BACKEND_MAP_MAX, 2));
        let below = Arc::new(MemoryMap::create(spec.raw()).unwrap());
        let map = Map::from_raw(Arc::new(ObservedMap::new(below, log.clone()))).unwrap();
        let keys: Vec<_> = (1..=3).map(lb::BackendKey::new).collect();
        let value = lb::Backend4::new([10, 244, 0, 1].into(), 80, 6);

        assert_eq!(map.update_batch(&keys, &[value; 3]).len(), 1);
        let failed = log.failed();
        assert_eq!(failed.len(), 1);
        let entry = &failed[&3_u32.to_ne_bytes()[..]];
        assert_eq!(entry.action.desired(), "to-be-inserted");
        assert!(entry.error.contains("os error 7"), "{}", entry.error);

        map.delete(&keys[0]).unwrap();
        map.update(&keys[2], &value).unwrap();
        assert!(log.failed().is_empty());
        let text = exposition(&Registry::new(metrics.metrics(), &[]).unwrap());
        for line in [
            r#"cilium_bpf_map_ops_total{map_name="lb4_backends_v3",operation="update",outcome="success"} 3"#,
            r#"cilium_bpf_map_ops_total{map_name="lb4_backends_v3",operation="update",outcome="fail"} 1"#,
            r#"cilium_bpf_map_ops_total{map_name="lb4_backends_v3",operation="delete",outcome="success"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_is_an_error_until_it_would_have_been_retried() {
        let log = Arc::new(MapLog::new(&lb::BACKENDS4.family, None, Arc::default()));
        let spec = lb::BACKENDS4.spec(&MapSizes::default().with(lb::BACKEND_MAP_MAX, 1));
        let below = Arc::new(MemoryMap::create(spec.raw()).unwrap());
        let map = Map::from_raw(Arc::new(ObservedMap::new(below, log.clone()))).unwrap();
        let keys = [1, 2].map(lb::BackendKey::new);
        let value = lb::Backend4::new([10, 244, 0, 1].into(), 80, 6);

        assert_eq!(map.update_batch(&keys, &[value; 2]).len(), 1);
        map.delete(&keys[1]).unwrap();

        assert_eq!(log.failed().len(), 1);
        tokio::time::advance(GIVEN_BACK + Duration::from_secs(1)).await;
        assert!(log.failed().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_long_ago_makes_room_for_what_fails_now() {
        let log = MapLog::new(&lb::BACKENDS4.family, None, Arc::default());
        let fail = |keys: std::ops::Range<u32>| {
            for key in keys {
                let failure = RawFailure {
                    index: 0,
                    error: std::io::Error::from_raw_os_error(7),
                };
                log.note(Action::Update, &key.to_ne_bytes(), &[], 0, &[failure]);
            }
        };
        let has = |key: u32| log.failed().contains_key(&key.to_ne_bytes()[..]);
        let most = MOST_FAILED as u32;
        fail(0..most);
        for key in [3, 5] {
            log.note(Action::Delete, &u32::to_ne_bytes(key), &[], 0, &[]);
            tokio::time::advance(GIVEN_BACK / 2).await;
        }

        fail(most..most + 1);
        assert_eq!((has(3), has(most)), (true, false), "none is old");
        tokio::time::advance(Duration::from_secs(1)).await;
        fail(most..most + 2);
        assert_eq!(
            (has(3), has(5), has(most), has(most + 1)),
            (false, true, true, false)
        );
        tokio::time::advance(GIVEN_BACK / 2).await;
        fail(most + 1..most + 2);

        assert_eq!((has(5), has(most + 1)), (false, true));
    }

    #[test]
    fn pressure_is_shown_above_its_threshold() {
        let metrics = MapMetrics::default();
        for (entries, is_shown) in [(20, false), (30, true), (25, false)] {
            metrics.set_pressure_of("cilium_policy_v2_*", entries, 256, 0.1);

            let text = exposition(&Registry::new(metrics.metrics(), &[]).unwrap());
            assert_eq!(text.contains("cilium_policy_v2_*"), is_shown, "{entries}: {text}");
        }
    }
}
