// SPDX-License-Identifier: Apache-2.0

//! Metrics of the maps: operations on them, and how full they are.

use std::sync::Arc;
use std::time::Duration;

use hive::{Job, JobCtx, Jobs, SpawnError};
use skep_metrics::{Counter, CounterVec, GaugeVec, Metrics};

use super::{Entries, Failures, Keys, LbMaps, MapEntry, MapError, MapKind, MapUsage};

/// Metrics of the maps; label `map_name` is the pinned name without `cilium_`.
#[derive(Debug, Metrics)]
#[metrics(prefix = "bpf_map")]
pub struct MapMetrics {
    /// Operations on BPF maps.
    #[metric(name = "ops_total", labels = ["map_name", "operation", "outcome"])]
    operations: CounterVec,
    /// Entries of a BPF map in proportion to what it can hold.
    #[metric(labels = ["map_name"])]
    pressure: GaugeVec,
}

impl MapMetrics {
    /// No series yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes how full maps are.
    pub fn set_pressure(&self, usage: &[MapUsage]) {
        for map in usage.iter().filter(|map| map.max > 0) {
            let pressure = f64::from(map.entries) / f64::from(map.max);
            self.pressure.with([short_name(map.kind, map.ipv6)]).set(pressure);
        }
    }

    fn count(&self, kind: MapKind, operation: &str, done: [usize; 2], failed: [usize; 2]) {
        for (at, ipv6) in [(0, false), (1, true)] {
            let counter = |outcome: &str| -> Counter {
                self.operations.with([short_name(kind, ipv6), operation, outcome])
            };
            if done[at] > failed[at] {
                counter("success").add((done[at] - failed[at]) as f64);
            }
            if failed[at] > 0 {
                counter("fail").add(failed[at] as f64);
            }
        }
    }
}

/// Registers the job that looks how full the maps are; an interval of zero turns it off.
pub(crate) fn report_pressure(
    maps: Arc<dyn LbMaps>,
    metrics: Arc<MapMetrics>,
    interval: Duration,
    jobs: &Jobs,
) -> Result<(), SpawnError> {
    if interval.is_zero() {
        return Ok(());
    }
    jobs.spawn(
        Job::every(interval, "pressure-metrics-reporter", move |_: JobCtx| {
            // Counting a large map takes a while, and is work of the kernel.
            let (maps, metrics) = (maps.clone(), metrics.clone());
            async move {
                let counted = tokio::task::spawn_blocking(move || metrics.set_pressure(&maps.usage()));
                counted.await
            }
        })
        .run_at_start(),
    )
}

fn short_name(kind: MapKind, ipv6: bool) -> &'static str {
    let name = kind.name(ipv6);
    name.strip_prefix("cilium_").unwrap_or(name)
}

/// Counts the operations on the maps below.
pub struct CountedMaps {
    below: Arc<dyn LbMaps>,
    metrics: Arc<MapMetrics>,
}

impl CountedMaps {
    /// Wraps maps.
    pub fn new(below: Arc<dyn LbMaps>, metrics: Arc<MapMetrics>) -> Self {
        Self { below, metrics }
    }

    fn note(&self, kind: MapKind, operation: &str, families: &[bool], failures: &Failures) {
        let ipv6 = families.iter().filter(|ipv6| **ipv6).count();
        let failed6 = failures
            .iter()
            .filter(|(index, _)| families.get(*index) == Some(&true))
            .count();
        let done = [families.len() - ipv6, ipv6];
        self.metrics
            .count(kind, operation, done, [failures.len() - failed6, failed6]);
    }
}

impl LbMaps for CountedMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        let failures = self.below.update(entries);
        self.note(entries.kind(), "update", &entries.families(), &failures);
        failures
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        let failures = self.below.delete(keys);
        self.note(keys.kind(), "delete", &keys.families(), &failures);
        failures
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        self.below.dump(kind, visit)
    }

    fn usage(&self) -> Vec<MapUsage> {
        self.below.usage()
    }
}

#[cfg(test)]
mod tests {
    use skep_bpf_maps::lb::LbMapSizes;
    use skep_metrics::{MetricSet, Registry, exposition};

    use super::*;
    use crate::maps::fake::FakeMaps;
    use crate::maps::{AffinityKey, RevNatKey, RevNatValue};

    fn text(metrics: &MapMetrics) -> String {
        let registry = Registry::new(metrics.metrics(), &[]).unwrap();
        exposition(&registry)
    }

    #[test]
    fn operations_are_counted_by_map_and_outcome() {
        let metrics = Arc::new(MapMetrics::new());
        let sizes = LbMapSizes {
            affinity: 1,
            ..LbMapSizes::default()
        };
        let maps = CountedMaps::new(Arc::new(FakeMaps::new(sizes)), metrics.clone());
        let reverse = |id, ip: &str| {
            let ip: std::net::IpAddr = ip.parse().unwrap();
            let ipv6 = ip.is_ipv6();
            (RevNatKey { id, ipv6 }, RevNatValue { ip, port: 80 })
        };

        maps.update(Entries::ReverseNat(&[
            reverse(1, "10.0.0.1"),
            reverse(2, "fd00::1"),
            reverse(3, "10.0.0.2"),
        ]));
        let affinity = [
            AffinityKey { id: 1, backend: 1 },
            AffinityKey { id: 1, backend: 2 },
        ];
        assert_eq!(maps.update(Entries::AffinityMatch(&affinity)).len(), 1);
        maps.delete(Keys::AffinityMatch(&affinity[..1]));

        let text = text(&metrics);
        for line in [
            r#"cilium_bpf_map_ops_total{map_name="lb4_reverse_nat",operation="update",outcome="success"} 2"#,
            r#"cilium_bpf_map_ops_total{map_name="lb6_reverse_nat",operation="update",outcome="success"} 1"#,
            r#"cilium_bpf_map_ops_total{map_name="lb_affinity_match",operation="update",outcome="success"} 1"#,
            r#"cilium_bpf_map_ops_total{map_name="lb_affinity_match",operation="update",outcome="fail"} 1"#,
            r#"cilium_bpf_map_ops_total{map_name="lb_affinity_match",operation="delete",outcome="success"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn pressure_is_the_filled_part() {
        let metrics = MapMetrics::new();

        metrics.set_pressure(&[MapUsage {
            kind: MapKind::Services,
            ipv6: true,
            entries: 250,
            max: 1000,
        }]);

        let text = text(&metrics);
        assert!(
            text.contains(r#"cilium_bpf_map_pressure{map_name="lb6_services_v2"} 0.25"#),
            "{text}"
        );
    }
}
