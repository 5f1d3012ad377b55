// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::collections::BTreeMap;

use hive::config::Faults;
use ipnet::IpNet;
use skep_datapath_config::AddressFamilies;

use crate::allocator::{Family, NetworkError, PrefixAllocator};

/// Modes in which the operator allocates nothing.
const WITHOUT_OPERATOR: [&str; 3] = ["kubernetes", "crd", "delegated-plugin"];
const CLUSTER_POOL: &str = "cluster-pool";

/// How nodes get pod CIDRs.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Mode of address management: cluster-pool, or one in which the operator allocates nothing: kubernetes, crd,
    /// delegated-plugin.
    #[config(default = "cluster-pool")]
    pub ipam: String,
    /// IPv4 networks of which nodes get pod CIDRs, in this order.
    pub cluster_pool_ipv4_cidr: Vec<String>,
    /// Prefix length of IPv4 pod CIDRs.
    #[config(default = 24)]
    pub cluster_pool_ipv4_mask_size: u8,
    /// IPv6 networks of which nodes get pod CIDRs, in this order.
    pub cluster_pool_ipv6_cidr: Vec<String>,
    /// Prefix length of IPv6 pod CIDRs.
    #[config(default = 112)]
    pub cluster_pool_ipv6_mask_size: u8,
}

/// Why there are no pools.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A family in use has no network: set one, or turn the family off.
    #[error("--{flag} is empty, but --{family_flag} is on")]
    NoNetwork {
        /// Flag of the networks.
        flag: &'static str,
        /// Flag of the family.
        family_flag: &'static str,
    },
    /// Networks of a family that is off: turn it on, or remove them.
    #[error("--{flag} is set, but --{family_flag} is off")]
    FamilyOff {
        /// Flag of the networks.
        flag: &'static str,
        /// Flag of the family.
        family_flag: &'static str,
    },
    /// The networks cannot be cut into pod CIDRs.
    #[error("--{flag}")]
    Network {
        /// Flag of the networks.
        flag: &'static str,
        /// What is wrong.
        #[source]
        cause: NetworkError,
    },
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.ipam != CLUSTER_POOL && !WITHOUT_OPERATOR.contains(&self.ipam.as_str()) {
            let known = WITHOUT_OPERATOR.join(", ");
            faults.add(
                "ipam",
                format!("`{}` is not supported: {CLUSTER_POOL}, {known}", self.ipam),
            );
        }
        for (flag, texts) in [
            ("cluster-pool-ipv4-cidr", &self.cluster_pool_ipv4_cidr),
            ("cluster-pool-ipv6-cidr", &self.cluster_pool_ipv6_cidr),
        ] {
            for text in texts.iter().filter(|text| text.trim().parse::<IpNet>().is_err()) {
                faults.add(flag, format!("`{text}` is not a network such as 10.0.0.0/8"));
            }
        }
    }

    /// Whether the operator allocates pod CIDRs.
    #[must_use]
    pub fn allocates(&self) -> bool {
        self.ipam == CLUSTER_POOL
    }

    /// An allocator for each family in use.
    ///
    /// # Errors
    /// [`PoolError`] if the networks do not suit the families.
    pub fn pools(&self, families: &AddressFamilies) -> Result<BTreeMap<Family, PrefixAllocator>, PoolError> {
        let mut pools = BTreeMap::new();
        let v4 = (&self.cluster_pool_ipv4_cidr, self.cluster_pool_ipv4_mask_size);
        let v6 = (&self.cluster_pool_ipv6_cidr, self.cluster_pool_ipv6_mask_size);
        for (family, is_on, (texts, mask_size), flag, family_flag) in [
            (
                Family::V4,
                families.ipv4,
                v4,
                "cluster-pool-ipv4-cidr",
                "enable-ipv4",
            ),
            (
                Family::V6,
                families.ipv6,
                v6,
                "cluster-pool-ipv6-cidr",
                "enable-ipv6",
            ),
        ] {
            match (is_on, texts.is_empty()) {
                (true, true) => return Err(PoolError::NoNetwork { flag, family_flag }),
                (false, false) => return Err(PoolError::FamilyOff { flag, family_flag }),
                (false, true) => continue,
                (true, false) => {}
            }
            // Validation has rejected malformed ones.
            let networks = texts.iter().filter_map(|text| text.trim().parse().ok()).collect();
            let pool = PrefixAllocator::new(family, networks, mask_size)
                .map_err(|cause| PoolError::Network { flag, cause })?;
            pools.insert(family, pool);
        }
        Ok(pools)
    }
}
