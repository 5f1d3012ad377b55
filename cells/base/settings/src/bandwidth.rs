// SPDX-License-Identifier: Apache-2.0

//! Settings of the bandwidth manager.

use hive::config::Faults;

/// Rates of pods.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = BandwidthConfig::check)]
pub struct BandwidthConfig {
    /// Enforce the bandwidth annotations of pods, by departure times of packets and fq queueing disciplines.
    /// Requires a kernel with fq.
    #[config(default = false, flag = "enable-bandwidth-manager")]
    pub enabled: bool,
    /// Use BBR congestion control with the bandwidth manager.
    #[config(default = false, flag = "enable-bbr")]
    pub bbr: bool,
    /// Use BBR congestion control only in the network namespace of the host.
    #[config(default = false, flag = "enable-bbr-hostns-only")]
    pub bbr_host_only: bool,
}

impl BandwidthConfig {
    /// Congestion control of TCP connections.
    pub fn congestion_control(&self) -> &'static str {
        if self.bbr { "bbr" } else { "cubic" }
    }

    fn check(&self, faults: &mut Faults) {
        if self.bbr_host_only && !self.bbr {
            faults.add("enable-bbr-hostns-only", "requires enable-bbr");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn bbr_of_the_host_requires_bbr() {
        let faults = |edit: fn(&mut BandwidthConfig)| testing::faults(BandwidthConfig::check, edit);
        assert_eq!(faults(|_| ()), "");
        assert!(faults(|config| config.bbr_host_only = true).contains("requires enable-bbr"));
        assert_eq!(
            faults(|config| (config.bbr, config.bbr_host_only) = (true, true)),
            ""
        );
    }
}
