// SPDX-License-Identifier: Apache-2.0

//! Settings of LB-IPAM, named as Cilium's.

use std::fmt;
use std::str::FromStr;

use crate::address::Family;

/// Settings of LB-IPAM.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Allocate addresses of CiliumLoadBalancerIPPools to Services of type LoadBalancer.
    #[config(default = true)]
    pub enable_lb_ipam: bool,
    /// Who allocates addresses to Services of type LoadBalancer without a class: `lbipam`, `nodeipam` or `none`.
    #[config(default = "lbipam")]
    pub default_lb_service_ipam: DefaultIpam,
}

/// Who allocates addresses to Services of type LoadBalancer without a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultIpam {
    /// The pools of LB-IPAM.
    LbIpam,
    /// The nodes.
    NodeIpam,
    /// No controller.
    None,
}

/// Not one of the words for [`DefaultIpam`]: fix the setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not lbipam, nodeipam or none")]
pub struct DefaultIpamError(String);

impl FromStr for DefaultIpam {
    type Err = DefaultIpamError;

    fn from_str(text: &str) -> Result<Self, DefaultIpamError> {
        match text {
            "lbipam" => Ok(Self::LbIpam),
            "nodeipam" => Ok(Self::NodeIpam),
            "none" => Ok(Self::None),
            _ => Err(DefaultIpamError(text.to_owned())),
        }
    }
}

impl fmt::Display for DefaultIpam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LbIpam => "lbipam",
            Self::NodeIpam => "nodeipam",
            Self::None => "none",
        })
    }
}

hive::config_value!(DefaultIpam, "lbipam, nodeipam or none");

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
    /// Whether a family is enabled.
    pub fn has(self, family: Family) -> bool {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    /// The enabled families.
    pub(crate) fn all(self) -> impl Iterator<Item = Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(move |family| self.has(*family))
    }
}
