// SPDX-License-Identifier: Apache-2.0

//! Settings of the load balancer, named as Cilium's.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use hive::config::Faults;

use crate::types::LbAlgorithm;

/// Whether this agent replaces kube-proxy.
#[derive(Debug, Clone, hive::Config)]
pub struct KubeProxyReplacement {
    /// Serve node ports, load balancer addresses, external IPs and host ports, as kube-proxy does.
    #[config(default = false, flag = "kube-proxy-replacement")]
    pub enabled: bool,
}

/// Address families in use.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Families::check)]
pub struct Families {
    /// Serve IPv4 addresses.
    #[config(default = true, flag = "enable-ipv4")]
    pub ipv4: bool,
    /// Serve IPv6 addresses.
    #[config(default = true, flag = "enable-ipv6")]
    pub ipv6: bool,
}

impl Families {
    fn check(&self, faults: &mut Faults) {
        if !self.ipv4 && !self.ipv6 {
            faults.add(
                "enable-ipv4",
                "and --enable-ipv6 are both off: one address family is needed",
            );
        }
    }
}

/// Settings of tables, maps and reconciler.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Most entries of each load-balancing map that has no limit of its own.
    #[config(default = 65536, flag = "bpf-lb-map-max")]
    pub map_max: i64,
    /// Most service entries; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-service-map-max", hidden)]
    pub service_map_max: i64,
    /// Most backends; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-service-backend-map-max", hidden)]
    pub backend_map_max: i64,
    /// Most reverse NAT entries; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-rev-nat-map-max", hidden)]
    pub rev_nat_map_max: i64,
    /// Most session affinity entries; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-affinity-map-max", hidden)]
    pub affinity_map_max: i64,
    /// Most client networks; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-source-range-map-max", hidden)]
    pub source_range_map_max: i64,
    /// Most Maglev tables; 0: as many as bpf-lb-map-max says.
    #[config(default = 0, flag = "bpf-lb-maglev-map-max", hidden)]
    pub maglev_map_max: i64,
    /// Most entries for translating back addresses of sockets; 0: by the memory of the node.
    #[config(default = 0, flag = "bpf-sock-rev-map-max")]
    pub sock_rev_map_max: i64,
    /// Allocate maps in full when they are made: faster updates, more memory.
    #[config(default = false, flag = "preallocate-bpf-maps")]
    pub preallocate: bool,
    /// First and last port for node ports.
    #[config(default = "30000,32767", flag = "node-port-range")]
    pub node_ports: PortRange,
    /// How backends are picked: `random` or `maglev`.
    #[config(default = "random", flag = "bpf-lb-algorithm")]
    pub algorithm: Algorithm,
    /// Let services pick their algorithm by annotation `service.cilium.io/lb-algorithm`.
    #[config(default = false, flag = "bpf-lb-algorithm-annotation")]
    pub algorithm_annotation: bool,
    /// How packets reach backends on other nodes: `snat`, `dsr` or `hybrid`.
    #[config(default = "snat", flag = "bpf-lb-mode")]
    pub mode: Mode,
    /// Let services pick their mode by annotation `service.cilium.io/forwarding-mode`.
    #[config(default = false, flag = "bpf-lb-mode-annotation")]
    pub mode_annotation: bool,
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
    /// Time between two measurements of how full the maps are; 0: none.
    #[config(default = "5m", flag = "lb-pressure-metrics-interval", hidden)]
    pub pressure_interval: Duration,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.map_max <= 0 || u32::try_from(self.map_max).is_err() {
            faults.add("bpf-lb-map-max", "must be larger than zero");
        }
        let limits = [
            ("bpf-lb-service-map-max", self.service_map_max),
            ("bpf-lb-service-backend-map-max", self.backend_map_max),
            ("bpf-lb-rev-nat-map-max", self.rev_nat_map_max),
            ("bpf-lb-affinity-map-max", self.affinity_map_max),
            ("bpf-lb-source-range-map-max", self.source_range_map_max),
            ("bpf-lb-maglev-map-max", self.maglev_map_max),
        ];
        for (flag, limit) in limits {
            if u32::try_from(limit).is_err() {
                faults.add(flag, "must not be negative");
            }
        }
        if self.sock_rev_map_max != 0 && !(1024..=16_777_216).contains(&self.sock_rev_map_max) {
            faults.add("bpf-sock-rev-map-max", "must be 0 or between 1024 and 16777216");
        }
        if self.mode_annotation && self.mode.0 == NodeMode::Hybrid {
            faults.add(
                "bpf-lb-mode",
                "hybrid cannot be combined with bpf-lb-mode-annotation",
            );
        }
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

/// A range of ports, written `first,last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRange(pub RangeInclusive<u16>);

impl FromStr for PortRange {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let error = || refused(text, "of the form min,max with min < max");
        let (first, last) = text.split_once(',').ok_or_else(error)?;
        let (first, last): (u16, u16) = (
            first.trim().parse().map_err(|_| error())?,
            last.trim().parse().map_err(|_| error())?,
        );
        if first == 0 || first >= last {
            Err(error())
        } else {
            Ok(Self(first..=last))
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0.start(), self.0.end())
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

/// How packets for backends on other nodes are sent, for services that say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeMode {
    /// Source address translation.
    #[default]
    Snat,
    /// Direct server return.
    Dsr,
    /// Direct server return for TCP, source address translation for the rest.
    Hybrid,
}

/// `snat`, `dsr` or `hybrid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub NodeMode);

impl FromStr for Mode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "snat" => Ok(Self(NodeMode::Snat)),
            "dsr" => Ok(Self(NodeMode::Dsr)),
            "hybrid" => Ok(Self(NodeMode::Hybrid)),
            _ => Err(refused(text, "snat, dsr or hybrid")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            NodeMode::Snat => "snat",
            NodeMode::Dsr => "dsr",
            NodeMode::Hybrid => "hybrid",
        })
    }
}

/// Who gives addresses to load balancer services without class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultIpam {
    /// The pools of LB-IPAM.
    LbIpam,
    /// The nodes.
    NodeIpam,
    /// Nobody.
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

hive::config_value!(PortRange, "min,max");
hive::config_value!(Algorithm, "random or maglev");
hive::config_value!(Mode, "snat, dsr or hybrid");
hive::config_value!(DefaultIpam, "lbipam, nodeipam or none");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_cilium_but_for_the_retries() {
        let config = <Config as hive::Config>::defaults().unwrap();

        assert_eq!(config.map_max, 65536);
        assert_eq!(config.node_ports.0, 30000..=32767);
        assert_eq!(config.retry_max, Duration::from_secs(60));
        assert_eq!(config.default_ipam, DefaultIpam::LbIpam);
    }

    #[test]
    fn refuses_ranges_that_are_none() {
        for text in ["30000", "30000,30000", "32767,30000", "a,b", "0,10"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        assert_eq!("1,2".parse::<PortRange>().unwrap().to_string(), "1,2");
    }
}
