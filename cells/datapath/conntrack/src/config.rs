// SPDX-License-Identifier: Apache-2.0

//! Settings of the garbage collection.

use std::time::Duration;

/// Settings of the garbage collection of connection tracking.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Time between two passes; 0 derives it from how much the last one removed.
    #[config(default = "0s", flag = "conntrack-gc-interval")]
    pub interval: Duration,
    /// Most time between two passes when it is derived; 0 means 12h.
    #[config(default = "0s", flag = "conntrack-gc-max-interval")]
    pub max_interval: Duration,
}
