// SPDX-License-Identifier: Apache-2.0

//! Probes between nodes.

use hive::config::Faults;

/// Probes of the connectivity between nodes.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = HealthCheckConfig::check)]
pub struct HealthCheckConfig {
    /// Probe the connectivity to all nodes, and answer the probes of others.
    #[config(default = true, flag = "enable-health-checking")]
    pub nodes: bool,
    /// Probe the connectivity to the health endpoints of all nodes. The node has its own health endpoint.
    #[config(default = true, flag = "enable-endpoint-health-checking")]
    pub endpoints: bool,
    /// TCP port of probes, on nodes and health endpoints.
    #[config(default = "4240", flag = "cluster-health-port")]
    pub port: u16,
    /// Probe frequency, from 0 (often) to 1 (rarely).
    #[config(default = "0.5", flag = "connectivity-probe-frequency-ratio")]
    pub frequency_ratio: f64,
    /// Number of ICMP echo requests of a probe. It fails if none is answered.
    #[config(default = "3", flag = "health-check-icmp-failure-threshold")]
    pub icmp_requests: u32,
}

impl HealthCheckConfig {
    fn check(&self, faults: &mut Faults) {
        if !(0.0..=1.0).contains(&self.frequency_ratio) {
            faults.add("connectivity-probe-frequency-ratio", "must be between 0 and 1");
        }
        if self.icmp_requests == 0 {
            faults.add("health-check-icmp-failure-threshold", "must be at least 1");
        }
        if self.port == 0 {
            faults.add("cluster-health-port", "must not be 0");
        }
    }

    /// The node has a health endpoint.
    pub fn has_endpoint(&self) -> bool {
        self.nodes && self.endpoints
    }
}
