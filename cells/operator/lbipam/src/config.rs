// SPDX-License-Identifier: Apache-2.0

//! Settings of LB-IPAM, named as Cilium's.

use crate::address::Family;

/// Settings of LB-IPAM.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Enable LB-IPAM: addresses of CiliumLoadBalancerIPPools for Services of type LoadBalancer.
    #[config(default = true)]
    pub enable_lb_ipam: bool,
}

/// The enabled address families. A cell that owns their settings provides it; the default is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, hive::Value)]
pub struct Families {
    /// IPv4 is enabled.
    pub ipv4: bool,
    /// IPv6 is enabled.
    pub ipv6: bool,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            ipv4: true,
            ipv6: true,
        }
    }
}

impl Families {
    pub fn has(self, family: Family) -> bool {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    pub(crate) fn all(self) -> impl Iterator<Item = Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(move |family| self.has(*family))
    }
}
