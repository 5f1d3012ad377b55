// SPDX-License-Identifier: Apache-2.0

//! Settings of NAT statistics.

use std::time::Duration;

use hive::config::Faults;

/// Settings of NAT statistics.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Rows of table `nat-stats` for each address family; 0: the NAT maps are not walked.
    #[config(default = 32, flag = "nat-map-stats-entries")]
    pub entries: u32,
    /// Time between two walks of the NAT maps.
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
