// SPDX-License-Identifier: Apache-2.0

//! Settings of the load balancer, named as Cilium's.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hive::config::Faults;

use crate::types::LbAlgorithm;

/// Settings of tables and reconciler.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// How backends are picked: `random` or `maglev`.
    #[config(default = "random", flag = "bpf-lb-algorithm")]
    pub algorithm: Algorithm,
    /// Let services pick their algorithm by annotation `service.cilium.io/lb-algorithm`.
    #[config(default = false, flag = "bpf-lb-algorithm-annotation")]
    pub algorithm_annotation: bool,
    /// Let traffic from outside the cluster use cluster IPs.
    #[config(default = false, flag = "bpf-lb-external-clusterip")]
    pub external_cluster_ip: bool,
    /// Check source ranges of services on all their addresses, not only those for outside.
    #[config(default = false, flag = "bpf-lb-source-range-all-types")]
    pub source_range_all_types: bool,
    /// Prefer backends by zone or node when services ask for it.
    #[config(default = false, flag = "enable-service-topology")]
    pub topology: bool,
    /// Who gives addresses to load balancer services without class: `lbipam`, `nodeipam` or `none`.
    #[config(default = "lbipam", flag = "default-lb-service-ipam")]
    pub default_ipam: DefaultIpam,
    /// Numbers of zones for the maps: `zone=number,...`, 1 to 255.
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

/// Why a setting was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct SettingError {
    text: String,
    expected: &'static str,
}

fn refused(text: &str, expected: &'static str) -> SettingError {
    SettingError {
        text: text.to_owned(),
        expected,
    }
}

/// `random` or `maglev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm(pub LbAlgorithm);

impl FromStr for Algorithm {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "random" => Ok(Self(LbAlgorithm::Random)),
            "maglev" => Ok(Self(LbAlgorithm::Maglev)),
            _ => Err(refused(text, "random or maglev")),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who gives addresses to load balancer services without class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultIpam {
    /// The pools of LB-IPAM.
    LbIpam,
    /// The nodes.
    NodeIpam,
    /// No controller.
    None,
}

impl FromStr for DefaultIpam {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "lbipam" => Ok(Self::LbIpam),
            "nodeipam" => Ok(Self::NodeIpam),
            "none" => Ok(Self::None),
            _ => Err(refused(text, "lbipam, nodeipam or none")),
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

hive::config_value!(Algorithm, "random or maglev");
hive::config_value!(DefaultIpam, "lbipam, nodeipam or none");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_cilium_but_for_the_retries() {
        let config = <Config as hive::Config>::defaults().unwrap();

        assert_eq!(config.retry_max, Duration::from_secs(60));
        assert_eq!(config.default_ipam, DefaultIpam::LbIpam);
    }
}
