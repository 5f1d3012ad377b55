// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

/// Policy maps of endpoints.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Drop all packets of an endpoint while its policy has more entries than its map; otherwise those that do not fit are missing.
    #[config(default = false)]
    pub enable_endpoint_lockdown_on_policy_overflow: bool,
    /// Fill ratio of policy maps above which `bpf_map_pressure` has their series.
    #[config(default = 0.1)]
    pub bpf_policy_map_pressure_metrics_threshold: f64,
    /// Interval of comparisons of policy maps with the desired policies; 0: never.
    #[config(default = "15m")]
    pub bpf_policy_map_full_reconciliation_interval: Duration,
}
