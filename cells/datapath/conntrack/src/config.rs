// SPDX-License-Identifier: Apache-2.0

//! Settings of the garbage collection.

use std::time::Duration;

/// Settings of the garbage collection of connection tracking.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Interval of conntrack garbage collection; 0: derived from the ratio of deleted entries.
    #[config(default = "0s", flag = "conntrack-gc-interval")]
    pub interval: Duration,
    /// Maximum of the derived interval; 0: 12h.
    #[config(default = "0s", flag = "conntrack-gc-max-interval")]
    pub max_interval: Duration,
}
