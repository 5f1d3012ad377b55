// SPDX-License-Identifier: Apache-2.0

//! The specification of a pool.

use std::collections::BTreeMap;

use ipnet::IpNet;
use skep_k8s_crds::pools::PodPoolSpec;

use crate::allocator::{Family, NetworkError, PrefixAllocator};

/// Why a pool cannot be used as it is specified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolSpecError {
    /// A network of the pool is malformed: correct it.
    #[error("invalid CIDR address: {text}")]
    Malformed { text: String },
    /// The networks cannot be cut into prefixes of the mask size.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The mask size is not that of an address family: correct it.
    #[error("mask size {mask_size} is not a prefix length of family {}", .family.as_str())]
    MaskSize { mask_size: isize, family: Family },
    /// Nodes have prefixes of another length: create another pool.
    #[error("the mask size of family {} cannot be changed from {old} to {new}", .family.as_str())]
    MaskSizeChanged {
        family: Family,
        old: u8,
        /// The mask size that is refused.
        new: u8,
    },
    /// Agents use or do not use the first and the last address already: create another pool.
    #[error("allowFirstIP and allowLastIP cannot be changed")]
    EndsChanged,
}

/// Networks of a family, and how they are cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FamilySpec {
    pub(super) networks: Vec<IpNet>,
    pub(super) mask_size: u8,
}

/// A valid specification of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolSpec {
    pub(super) families: BTreeMap<Family, FamilySpec>,
    pub(super) allow_first_ip: bool,
    pub(super) allow_last_ip: bool,
}

impl PoolSpec {
    /// The specification of a CiliumPodIPPool.
    ///
    /// # Errors
    /// [`PoolSpecError`] for the first fault.
    pub fn new(spec: &PodPoolSpec) -> Result<Self, PoolSpecError> {
        let v4 = spec.ipv4.as_ref().map(|pool| (&pool.cidrs, pool.mask_size));
        let v6 = spec.ipv6.as_ref().map(|pool| (&pool.cidrs, pool.mask_size));
        let mut families = BTreeMap::new();
        for (family, pool) in [(Family::V4, v4), (Family::V6, v6)] {
            let Some((cidrs, mask_size)) = pool else { continue };
            let mask_size =
                u8::try_from(mask_size).map_err(|_| PoolSpecError::MaskSize { mask_size, family })?;
            let networks = cidrs.iter().map(|text| {
                text.parse::<IpNet>()
                    .map_err(|_| PoolSpecError::Malformed { text: text.clone() })
            });
            let networks = networks.collect::<Result<Vec<_>, _>>()?;
            PrefixAllocator::new(family, networks.clone(), mask_size)?;
            families.insert(family, FamilySpec { networks, mask_size });
        }
        Ok(Self {
            families,
            allow_first_ip: spec.allow_first_ip.unwrap_or_default(),
            allow_last_ip: spec.allow_last_ip.unwrap_or_default(),
        })
    }

    /// Whether a prefix is one that the pool is cut into.
    pub(super) fn has(&self, prefix: &IpNet) -> bool {
        let family = self.families.get(&Family::of(prefix));
        family.is_some_and(|family| {
            let is_inside = family.networks.iter().any(|network| network.contains(prefix));
            is_inside && family.mask_size == prefix.prefix_len()
        })
    }

    /// Whether a pool may change to this from `old`.
    pub(super) fn check_change(&self, old: &Self) -> Result<(), PoolSpecError> {
        for (family, spec) in &self.families {
            let Some(before) = old.families.get(family) else {
                continue;
            };
            if before.mask_size != spec.mask_size {
                return Err(PoolSpecError::MaskSizeChanged {
                    family: *family,
                    old: before.mask_size,
                    new: spec.mask_size,
                });
            }
        }
        if (self.allow_first_ip, self.allow_last_ip) != (old.allow_first_ip, old.allow_last_ip) {
            return Err(PoolSpecError::EndsChanged);
        }
        Ok(())
    }
}

/// How many addresses of a prefix pods can have. Prefixes of one or two addresses are used whole.
pub(super) fn usable(prefix: &IpNet, allow_first_ip: bool, allow_last_ip: bool) -> u128 {
    let host_bits = prefix.max_prefix_len() - prefix.prefix_len();
    if host_bits <= 1 {
        return 1 << host_bits;
    }
    let all = 1_u128.checked_shl(host_bits.into()).unwrap_or(u128::MAX);
    all - u128::from(!allow_first_ip) - u128::from(!allow_last_ip)
}
