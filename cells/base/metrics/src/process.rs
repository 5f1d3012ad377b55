// SPDX-License-Identifier: Apache-2.0

//! Cell: what the kernel knows of this process, and its version. Requires nothing; [`crate::cell_in`] exports it.

use std::fs;
use std::sync::Arc;

use hive::{Cell, Members};

use crate::metric::{GaugeVec, Kind, Labels, Metric, MetricHandle, Opts, Value};

/// Units of times in `/proc/PID/stat`, per second: USER_HZ, 100 on every architecture that programs are built for.
const TICKS: f64 = 100.0;

hive::catalogue!(cell);

/// `process_*`, as Prometheus' client libraries have them, and `version`.
pub fn cell() -> Cell {
    Cell::module("process-metrics", "Metrics of the process").provide(metrics)
}

crate::declare!(fn metrics);

fn metrics() -> Members<MetricHandle> {
    let read = |name: &str, help: &str, kind, read| -> MetricHandle {
        let opts = Opts::new(format!("process_{name}"), help);
        Arc::new(ProcessMetric { opts, kind, read })
    };
    Members(vec![
        read(
            "cpu_seconds_total",
            "User and system CPU time of the process",
            Kind::Counter,
            cpu_seconds,
        ),
        read("open_fds", "Open file descriptors", Kind::Gauge, open_files),
        read(
            "max_fds",
            "Maximum number of open file descriptors",
            Kind::Gauge,
            || limit("Max open files"),
        ),
        read("virtual_memory_bytes", "Virtual memory size", Kind::Gauge, || {
            memory("VmSize:")
        }),
        read(
            "virtual_memory_max_bytes",
            "Maximum virtual memory size",
            Kind::Gauge,
            || limit("Max address space"),
        ),
        read(
            "resident_memory_bytes",
            "Resident memory size",
            Kind::Gauge,
            || memory("VmRSS:"),
        ),
        read(
            "start_time_seconds",
            "Start time of the process as a Unix timestamp",
            Kind::Gauge,
            start_time,
        ),
        version(),
    ])
}

fn version() -> MetricHandle {
    let version = GaugeVec::new(
        Opts::new("version", "Version of the program"),
        ["version", "arch"],
    );
    // Crates of the workspace and programs have one version.
    version.with([env!("CARGO_PKG_VERSION"), architecture()]).set(1.0);
    Arc::new(version)
}

/// The architecture, as images and Kubernetes name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A number of `/proc`, read whenever metrics are. Without series if it cannot be read.
struct ProcessMetric {
    opts: Opts,
    kind: Kind,
    read: fn() -> Option<f64>,
}

impl Metric for ProcessMetric {
    fn opts(&self) -> &Opts {
        &self.opts
    }
    fn kind(&self) -> Kind {
        self.kind
    }
    fn visit(&self, visit: &mut dyn FnMut(Labels, Value)) {
        if let Some(value) = (self.read)() {
            visit(Labels::new(), Value::Number(value));
        }
    }
}

/// Field `number` of `/proc/self/stat`, from 1, behind the name of the program, which may contain anything.
fn stat(number: usize) -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    // The first of them is number 3.
    let field = fields.split_ascii_whitespace().nth(number.checked_sub(3)?)?;
    field.parse().ok()
}

fn cpu_seconds() -> Option<f64> {
    Some((stat(14)? + stat(15)?) / TICKS)
}

fn start_time() -> Option<f64> {
    let booted = line("/proc/stat", "btime ")?.parse::<f64>().ok()?;
    Some(booted + stat(22)? / TICKS)
}

fn open_files() -> Option<f64> {
    let opened = fs::read_dir("/proc/self/fd").ok()?.count();
    // Without the one that reads the folder.
    Some(opened.saturating_sub(1) as f64)
}

fn memory(name: &str) -> Option<f64> {
    let text = line("/proc/self/status", name)?;
    let kib: f64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// A soft limit; the largest number if there is none.
fn limit(name: &str) -> Option<f64> {
    let text = line("/proc/self/limits", name)?;
    match text.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

/// What follows `prefix` in the line of a file that starts with it.
fn line(path: &str, prefix: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(prefix))?;
    Some(rest.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use super::*;
    use crate::{Namespace, Registry};

    fn values() -> BTreeMap<String, f64> {
        let registry = Registry::in_namespace(Namespace::OPERATOR, metrics().0, &[]).unwrap();
        let values = registry.values().into_iter();
        values.map(|metric| (metric.name, metric.value)).collect()
    }

    #[test]
    fn process_is_measured() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let value = |name: &str| {
            let name = format!("cilium_operator_process_{name}");
            *values().get(&name).unwrap_or_else(|| panic!("{name}"))
        };

        let age = now.as_secs_f64() - value("start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "started {age} seconds ago");
        let resident = value("resident_memory_bytes");
        assert!(resident > 65_536.0 && resident < value("virtual_memory_bytes"));
        assert!(value("virtual_memory_bytes") <= value("virtual_memory_max_bytes"));
        assert!(value("open_fds") >= 1.0 && value("open_fds") <= value("max_fds"));
    }

    #[test]
    fn cpu_time_grows() {
        let before = cpu_seconds().unwrap();
        let mut sum = 0_u64;
        while cpu_seconds().unwrap() < before + 0.05 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_seconds().unwrap() < 3600.0);
    }

    #[test]
    fn open_files_are_counted() {
        let files: Vec<_> = (0..64)
            .map(|_| fs::File::open("/proc/self/stat").unwrap())
            .collect();

        assert!(open_files().unwrap() >= files.len() as f64);
    }

    #[test]
    fn version_names_the_architecture() {
        let registry = Registry::in_namespace(Namespace::OPERATOR, [version()], &[]).unwrap();
        let values = registry.values();

        assert_eq!(values[0].name, "cilium_operator_version");
        assert_eq!(values[0].labels["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(values[0].value, 1.0);
        assert!(!values[0].labels["arch"].is_empty());
    }
}
