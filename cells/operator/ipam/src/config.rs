// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::collections::BTreeMap;

use hive::config::Faults;
use ipnet::IpNet;
use skep_base_settings::AddressFamilies;

use crate::allocator::{Family, NetworkError, PrefixAllocator};
use crate::multipool::{AutoPools, Migration};

/// Modes in which the operator allocates nothing.
const WITHOUT_OPERATOR: [&str; 3] = ["kubernetes", "crd", "delegated-plugin"];
const CLUSTER_POOL: &str = "cluster-pool";
const MULTI_POOL: &str = "multi-pool";

/// How nodes get pod CIDRs.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// IPAM mode: cluster-pool, multi-pool, or a mode without allocation by the operator: kubernetes, crd,
    /// delegated-plugin.
    #[config(default = "cluster-pool")]
    pub ipam: String,
    /// IPv4 networks for pod CIDRs of nodes, in order.
    pub cluster_pool_ipv4_cidr: Vec<String>,
    /// Prefix length of IPv4 pod CIDRs.
    #[config(default = 24)]
    pub cluster_pool_ipv4_mask_size: u8,
    /// IPv6 networks for pod CIDRs of nodes, in order.
    pub cluster_pool_ipv6_cidr: Vec<String>,
    /// Prefix length of IPv6 pod CIDRs.
    #[config(default = 112)]
    pub cluster_pool_ipv6_mask_size: u8,
    /// CiliumPodIPPools to create at start in mode multi-pool, such as
    /// `default=ipv4-cidrs:10.10.0.0/16;ipv4-mask-size:24`. Existing pools are not changed.
    #[config(default = "")]
    pub auto_create_cilium_pod_ip_pools: AutoPools,
    /// Default pool of the migration from mode cluster-pool.
    #[config(default = "default")]
    pub ipam_default_ip_pool: String,
    /// Migrate pod CIDRs of mode cluster-pool to the default pool of mode multi-pool.
    pub enable_cluster_pool_to_multi_pool_migration: bool,
    /// Has no effect: nodes are migrated one after another.
    #[config(default = 16, hidden, deprecated = "it has no effect")]
    pub multi_pool_migration_workers: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A family in use has no network: set one, or turn the family off.
    #[error("--{flag} is empty, but --{family_flag} is on")]
    NoNetwork {
        flag: &'static str,
        family_flag: &'static str,
    },
    /// Networks of a family that is off: turn it on, or remove them.
    #[error("--{flag} is set, but --{family_flag} is off")]
    FamilyOff {
        flag: &'static str,
        family_flag: &'static str,
    },
    /// The networks cannot be cut into pod CIDRs.
    #[error("--{flag}")]
    Network {
        flag: &'static str,
        #[source]
        cause: NetworkError,
    },
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if ![CLUSTER_POOL, MULTI_POOL].contains(&self.ipam.as_str())
            && !WITHOUT_OPERATOR.contains(&self.ipam.as_str())
        {
            let known = WITHOUT_OPERATOR.join(", ");
            faults.add(
                "ipam",
                format!(
                    "`{}` is not supported: {CLUSTER_POOL}, {MULTI_POOL}, {known}",
                    self.ipam
                ),
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

    /// Whether nodes get pod CIDRs of the networks in the settings.
    #[must_use]
    pub fn is_cluster_pool(&self) -> bool {
        self.ipam == CLUSTER_POOL
    }

    /// Whether nodes get networks of CiliumPodIPPools.
    #[must_use]
    pub fn is_multi_pool(&self) -> bool {
        self.ipam == MULTI_POOL
    }

    pub(crate) fn migration(&self) -> Option<Migration> {
        let pool = self.ipam_default_ip_pool.clone();
        self.enable_cluster_pool_to_multi_pool_migration
            .then_some(Migration { pool })
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
