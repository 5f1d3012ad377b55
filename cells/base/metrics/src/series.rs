// SPDX-License-Identifier: Apache-2.0

//! Series of metrics, and their names as texts.

use crate::metric::{Labels, MetricHandle, Value};

/// A series of a metric with its value.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) value: Value,
}

impl Series {
    /// All series of `metrics`, which come with their full names.
    pub(crate) fn of<'a>(metrics: impl Iterator<Item = (&'a str, &'a MetricHandle)>) -> Vec<Self> {
        let mut all = Vec::new();
        for (name, metric) in metrics {
            metric.visit(&mut |labels, value| {
                all.push(Self {
                    name: name.to_owned(),
                    labels,
                    value,
                })
            });
        }
        all
    }
}

/// Labels in one line: `k=v k2=v2`.
pub(crate) fn label_text(labels: &Labels) -> String {
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    pairs.join(" ")
}

/// What regular expressions of the commands are matched against.
pub(crate) fn search_text(name: &str, labels: &str) -> String {
    if labels.is_empty() {
        name.to_owned()
    } else {
        format!("{name} {labels}")
    }
}
