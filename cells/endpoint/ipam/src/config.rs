// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use hive::config::Faults;

/// What addresses are allocated from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    Kubernetes,
    #[default]
    ClusterPool,
    MultiPool,
    Crd,
    /// As `crd`: the operator of a cloud fills the CiliumNode.
    Eni,
    /// As `crd`.
    Azure,
    /// As `crd`.
    AlibabaCloud,
    DelegatedPlugin,
}

const MODES: &str = "kubernetes, cluster-pool, multi-pool, crd, eni, azure, alibabacloud or delegated-plugin";

impl Mode {
    /// Pod CIDRs are those of the Kubernetes Node.
    #[must_use]
    pub fn has_node_cidrs(self) -> bool {
        matches!(self, Self::Kubernetes | Self::DelegatedPlugin)
    }
}

/// Use one of the modes in the text.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an IPAM mode: {MODES}")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Ok(match text {
            "kubernetes" => Self::Kubernetes,
            "cluster-pool" => Self::ClusterPool,
            "multi-pool" => Self::MultiPool,
            "crd" => Self::Crd,
            "eni" => Self::Eni,
            "azure" => Self::Azure,
            "alibabacloud" => Self::AlibabaCloud,
            "delegated-plugin" => Self::DelegatedPlugin,
            _ => return Err(UnknownMode(text.to_owned())),
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubernetes => "kubernetes",
            Self::ClusterPool => "cluster-pool",
            Self::MultiPool => "multi-pool",
            Self::Crd => "crd",
            Self::Eni => "eni",
            Self::Azure => "azure",
            Self::AlibabaCloud => "alibabacloud",
            Self::DelegatedPlugin => "delegated-plugin",
        })
    }
}

hive::config_value!(
    Mode,
    "kubernetes, cluster-pool, multi-pool, crd, eni, azure, alibabacloud or delegated-plugin"
);

/// How addresses are allocated.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// IPAM mode: kubernetes, cluster-pool, multi-pool, crd (also eni, azure, alibabacloud) or delegated-plugin.
    #[config(default = "cluster-pool", flag = "ipam")]
    pub mode: Mode,
    /// Pool of pods that select no other one, and of the node's own addresses.
    #[config(default = "default")]
    pub ipam_default_ip_pool: String,
    /// Number of addresses to keep free, by pool; mode multi-pool.
    #[config(default = "default=8")]
    pub ipam_multi_pool_pre_allocation: BTreeMap<String, String>,
    /// Shortest interval of updates of the own CiliumNode; modes multi-pool and crd.
    #[config(default = "15s")]
    pub ipam_cilium_node_update_rate: Duration,
    /// Masquerade packets of the default pool alone; mode multi-pool.
    #[config(default = false)]
    pub only_masquerade_default_pool: bool,
    /// Wait for the IPv4 pod CIDR of the node, in any case if IPv4 is enabled.
    #[config(default = false, flag = "k8s-require-ipv4-pod-cidr")]
    pub requires_ipv4: bool,
    /// Wait for the IPv6 pod CIDR of the node, in any case if IPv6 is enabled.
    #[config(default = false, flag = "k8s-require-ipv6-pod-cidr")]
    pub requires_ipv6: bool,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        for (pool, count) in &self.ipam_multi_pool_pre_allocation {
            if count.parse::<u32>().is_err() {
                let fault = format!("{pool}: `{count}` is not a number of addresses");
                faults.add("ipam-multi-pool-pre-allocation", fault);
            }
        }
    }

    /// Addresses to keep free, by pool.
    #[must_use]
    pub fn pre_allocation(&self) -> BTreeMap<String, u64> {
        let pools = self.ipam_multi_pool_pre_allocation.iter();
        // Validation has rejected others.
        let counts = pools.filter_map(|(pool, count)| Some((pool.clone(), count.parse().ok()?)));
        counts.collect()
    }
}
