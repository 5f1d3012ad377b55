// SPDX-License-Identifier: Apache-2.0

//! Configuration of metrics.

use std::time::Duration;

use hive::config::Faults;

use crate::declared::unknown;

/// Which metrics are enabled.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Metrics to enable or disable: `+name` or `-name`.
    #[config(flag = "metrics")]
    pub metrics: Vec<String>,
}

impl Config {
    /// Whether the metrics of these cells are among those that are linked in is found when they are collected.
    fn check(&self, faults: &mut Faults) {
        for change in self.metrics.iter().filter(|change| !change.is_empty()) {
            if !change.starts_with(['+', '-']) {
                faults.add("metrics", format!("`{change}` must start with + or -"));
            }
            if let Some(error) = change.strip_prefix('+').and_then(unknown) {
                faults.add("metrics", error.to_string());
            }
        }
    }
}

/// How metrics are sampled.
#[derive(Debug, Clone, hive::Config)]
pub struct SamplerConfig {
    /// Sampling interval of metrics for the shell.
    #[config(default = "5m", flag = "metrics-sampling-interval")]
    pub sampling_interval: Duration,
}
