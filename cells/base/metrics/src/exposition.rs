// SPDX-License-Identifier: Apache-2.0

//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use crate::metric::{Labels, Value};
use crate::registry::Registry;
use crate::render::shortest;

/// All enabled metrics of `registry` as text.
///
/// ```
/// use std::sync::Arc;
/// use skep_base_metrics::{Counter, Opts, Registry, exposition};
///
/// let hits = Counter::new(Opts::new("hits_total", "Lookups"));
/// hits.inc();
/// let registry = Registry::new([Arc::new(hits) as _], &[]).unwrap();
/// assert_eq!(
///     exposition(&registry),
///     "# HELP cilium_hits_total Lookups\n# TYPE cilium_hits_total counter\ncilium_hits_total 1\n"
/// );
/// ```
pub fn exposition(registry: &Registry) -> String {
    let mut out = String::new();
    for (name, metric) in registry.metrics() {
        let help = metric.opts().help().replace('\\', "\\\\").replace('\n', "\\n");
        let mut has_series = false;
        let mut series = String::new();
        metric.visit(&mut |labels, value| {
            has_series = true;
            write_series(&mut series, name, &labels, &value);
        });
        // A family without series would be a header without content, which some readers refuse.
        if has_series {
            let _ = write!(
                out,
                "# HELP {name} {help}\n# TYPE {name} {}\n{series}",
                metric.kind()
            );
        }
    }
    out
}

fn write_series(out: &mut String, name: &str, labels: &Labels, value: &Value) {
    match value {
        Value::Number(number) => line(out, name, "", labels, None, &shortest(*number)),
        Value::Distribution(distribution) => {
            for (bound, count) in distribution.cumulative() {
                line(
                    out,
                    name,
                    "_bucket",
                    labels,
                    Some(&shortest(bound)),
                    &count.to_string(),
                );
            }
            let count = distribution.count().to_string();
            line(out, name, "_bucket", labels, Some("+Inf"), &count);
            line(out, name, "_sum", labels, None, &shortest(distribution.sum()));
            line(out, name, "_count", labels, None, &count);
        }
    }
}

fn line(out: &mut String, name: &str, suffix: &str, labels: &Labels, bound: Option<&str>, value: &str) {
    let _ = write!(out, "{name}{suffix}");
    let pairs = labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .chain(bound.map(|bound| ("le", bound)));
    let mut open = '{';
    for (name, value) in pairs {
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let _ = write!(out, "{open}{name}=\"{value}\"");
        open = ',';
    }
    if open == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}
