// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

/// Policy maps of endpoints.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Drop all packets of an endpoint while its policy has more entries than its map; otherwise those that do not fit are missing.
    #[config(default = false)]
    pub enable_endpoint_lockdown_on_policy_overflow: bool,
    /// Interval of comparisons of policy maps with the desired policies; 0: never.
    #[config(default = "15m")]
    pub bpf_policy_map_full_reconciliation_interval: Duration,
}
