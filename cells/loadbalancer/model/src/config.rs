// SPDX-License-Identifier: Apache-2.0

//! Settings of the load balancer, named as Cilium's.

use std::collections::BTreeMap;
use std::time::Duration;

use hive::config::Faults;

/// Settings of tables and reconciler.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Allow access to cluster IPs from outside the cluster.
    #[config(default = false, flag = "bpf-lb-external-clusterip")]
    pub external_cluster_ip: bool,
    /// Apply source ranges of services to all their frontends, not only external ones.
    #[config(default = false, flag = "bpf-lb-source-range-all-types")]
    pub source_range_all_types: bool,
    /// Enable topology-aware hints of services.
    #[config(default = false, flag = "enable-service-topology")]
    pub topology: bool,
    /// Zone ids in maps: `zone=id,...`, 1 to 255.
    #[config(flag = "fixed-zone-mapping")]
    pub zones: BTreeMap<String, u8>,
    /// Longest wait for all sources before the maps of an earlier run are changed.
    #[config(default = "1m", flag = "lb-init-wait-timeout", hidden)]
    pub init_wait_timeout: Duration,
    /// Pause before the first retry of a frontend that could not be written.
    #[config(default = "1s", flag = "lb-retry-backoff-min", hidden)]
    pub retry_min: Duration,
    /// Longest pause between retries; not shorter than the first.
    #[config(default = "1m", flag = "lb-retry-backoff-max", hidden)]
    pub retry_max: Duration,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.zones.values().any(|number| *number == 0) {
            faults.add("fixed-zone-mapping", "numbers are 1 to 255");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_cilium_but_for_the_retries() {
        let config = <Config as hive::Config>::defaults().unwrap();

        assert_eq!(config.retry_max, Duration::from_secs(60));
    }
}
