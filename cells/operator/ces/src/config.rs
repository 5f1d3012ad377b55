// SPDX-License-Identifier: Apache-2.0

//! Size of slices, rate of writes.

use std::fmt;
use std::str::FromStr;

use hive::config::Faults;
use serde::{Deserialize, Serialize};

/// Size of slices, rate of writes.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Maximum number of endpoints in a CiliumEndpointSlice.
    #[config(default = 100)]
    pub ces_max_ciliumendpoints_per_ces: u32,
    /// Rate limits of CiliumEndpointSlice writes by number of nodes, a JSON list. The entry with the most
    /// nodes up to the size of the cluster applies.
    #[config(default = "[{\"nodes\":0,\"limit\":10,\"burst\":20}]")]
    pub ces_rate_limits: RateLimits,
    /// What endpoints are made of: `default` of CiliumEndpoints, `slim` of pods, identities and nodes.
    #[config(default = "default", hidden)]
    pub ces_controller_mode: ControllerMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerMode {
    Default,
    Slim,
}

/// The mode is none of these.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is none of default, slim")]
pub struct UnknownMode(String);

impl FromStr for ControllerMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "default" => Ok(Self::Default),
            "slim" => Ok(Self::Slim),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

impl fmt::Display for ControllerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Slim => "slim",
        })
    }
}

hive::config_value!(ControllerMode, "default or slim");

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.ces_max_ciliumendpoints_per_ces == 0 {
            faults.add(
                "ces-max-ciliumendpoints-per-ces",
                "is 0: a slice has at least one endpoint",
            );
        }
    }
}

/// How often slices are written in a cluster of some size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// In clusters with as many nodes, or more.
    pub nodes: u32,
    pub limit: f64,
    pub burst: u32,
}

/// Rates by number of nodes, ascending; at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimits(Box<[RateLimit]>);

impl RateLimits {
    /// The rate for a number of nodes. A cluster smaller than all entries has that of the first one.
    pub fn for_nodes(&self, nodes: usize) -> RateLimit {
        let applies = |limit: &&RateLimit| usize::try_from(limit.nodes).is_ok_and(|least| least <= nodes);
        *self.0.iter().rev().find(applies).unwrap_or(&self.0[0])
    }
}

/// Why a list of rates is invalid: fix `ces-rate-limits`.
#[derive(Debug, thiserror::Error)]
pub enum RateLimitsError {
    /// It is no JSON list of such entries.
    #[error("not a JSON list of nodes, limit and burst")]
    Json(#[source] serde_json::Error),
    #[error("the list is empty")]
    Empty,
    /// With this entry, nothing would be written.
    #[error("limit and burst for {nodes} nodes are not both more than 0")]
    Zero { nodes: u32 },
}

impl FromStr for RateLimits {
    type Err = RateLimitsError;

    fn from_str(text: &str) -> Result<Self, RateLimitsError> {
        let mut limits: Vec<RateLimit> = serde_json::from_str(text).map_err(RateLimitsError::Json)?;
        limits.sort_by_key(|limit| limit.nodes);
        let is_zero = |limit: &&RateLimit| limit.burst == 0 || limit.limit <= 0.0;
        if let Some(RateLimit { nodes, .. }) = limits.iter().find(is_zero) {
            return Err(RateLimitsError::Zero { nodes: *nodes });
        }
        if limits.is_empty() {
            return Err(RateLimitsError::Empty);
        }
        Ok(Self(limits.into()))
    }
}

impl fmt::Display for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}

hive::config_value!(RateLimits, "a JSON list of nodes, limit and burst");

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"[{"nodes":100,"limit":50,"burst":100},{"nodes":10,"limit":10.5,"burst":20}]"#;

    #[test]
    fn entry_with_the_most_nodes_that_the_cluster_has_counts() {
        let limits: RateLimits = TWO.parse().unwrap();

        let of = |nodes| limits.for_nodes(nodes).burst;
        assert_eq!([of(0), of(10), of(99), of(100), of(5000)], [20, 20, 20, 100, 100]);
        assert_eq!(limits.to_string().parse::<RateLimits>().unwrap(), limits);
    }

    #[test]
    fn lists_that_make_no_sense_are_errors() {
        let error = |text: &str| hive::error_chain(&text.parse::<RateLimits>().unwrap_err()).to_string();

        assert!(error(r#"[{"nodes":0,"limit":1,"burst":1,"more":1}]"#).contains("unknown field `more`"));
        assert!(error("x").contains("not a JSON list"));
        assert_eq!(error("[]"), "the list is empty");
        assert_eq!(
            error(r#"[{"nodes":7,"limit":1,"burst":0}]"#),
            "limit and burst for 7 nodes are not both more than 0"
        );
    }
}
