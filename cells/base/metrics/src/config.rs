// SPDX-License-Identifier: Apache-2.0

//! Configuration of metrics.

use std::time::Duration;

/// Which metrics are enabled.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Metrics to enable or disable: `+name` or `-name`. The others keep their default.
    #[config(flag = "metrics")]
    pub metrics: Vec<String>,
}

/// How metrics are sampled.
#[derive(Debug, Clone, hive::Config)]
pub struct SamplerConfig {
    /// Time between two samples of all metrics for the shell.
    #[config(default = "5m", flag = "metrics-sampling-interval")]
    pub sampling_interval: Duration,
}
