// SPDX-License-Identifier: Apache-2.0

//! How backends are picked, and which controller allocates addresses to load balancer services.

use std::fmt;
use std::str::FromStr;

/// How backends are picked.
#[derive(Debug, Clone, hive::Config)]
pub struct BalancingConfig {
    /// Load-balancing algorithm: `random` or `maglev`.
    #[config(default = "random", flag = "bpf-lb-algorithm")]
    pub algorithm: Algorithm,
    /// Allow services to select their algorithm by annotation `service.cilium.io/lb-algorithm`.
    #[config(default = false, flag = "bpf-lb-algorithm-annotation")]
    pub algorithm_annotation: bool,
}

/// Which controller allocates addresses to load balancer services.
#[derive(Debug, Clone, hive::Config)]
pub struct ServiceIpamConfig {
    /// Controller that allocates addresses to Services of type LoadBalancer without a class: `lbipam`,
    /// `nodeipam` or `none`.
    #[config(default = "lbipam")]
    pub default_lb_service_ipam: DefaultIpam,
}

/// Invalid value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnknownWord {
    text: String,
    expected: &'static str,
}

fn unknown(text: &str, expected: &'static str) -> UnknownWord {
    UnknownWord {
        text: text.to_owned(),
        expected,
    }
}

/// Load-balancing algorithm of services that select none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Any backend.
    Random,
    /// Consistent hashing.
    Maglev,
}

impl FromStr for Algorithm {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "random" => Ok(Self::Random),
            "maglev" => Ok(Self::Maglev),
            _ => Err(unknown(text, "random or maglev")),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Random => "random",
            Self::Maglev => "maglev",
        })
    }
}

/// Controller that allocates addresses to Services of type LoadBalancer without class.
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
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "lbipam" => Ok(Self::LbIpam),
            "nodeipam" => Ok(Self::NodeIpam),
            "none" => Ok(Self::None),
            _ => Err(unknown(text, "lbipam, nodeipam or none")),
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
