// SPDX-License-Identifier: Apache-2.0

//! Settings of NAT statistics.

use std::time::Duration;

use hive::config::Faults;

/// Settings of NAT statistics.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Rows of table `nat-stats` per address family; 0: disabled.
    #[config(default = 32, flag = "nat-map-stats-entries")]
    pub entries: u32,
    /// Interval of NAT statistics.
    #[config(default = "30s", flag = "nat-map-stats-interval")]
    pub interval: Duration,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.interval.is_zero() {
            faults.add("nat-map-stats-interval", "must be more than 0");
        }
    }
}
