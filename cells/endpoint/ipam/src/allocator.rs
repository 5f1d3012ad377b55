// SPDX-License-Identifier: Apache-2.0

//! The addresses of one family, by mode.

use std::net::IpAddr;

use crate::{
    IpamError,
    pools::Pools,
    range::{Range, host_count},
    single::SingleAddresses,
};

/// What the addresses of a family are allocated from.
#[derive(Debug)]
pub(crate) enum Allocator {
    /// Modes `kubernetes` and `cluster-pool`: one network.
    Range(Range),
    /// Mode `multi-pool`: networks of pools.
    Pools(Pools),
    /// Mode `crd`: addresses in the CiliumNode.
    Single(SingleAddresses),
    /// Mode `delegated-plugin`: nothing.
    Delegated,
}

impl Allocator {
    /// Whether addresses are of several pools. Otherwise the pool of a request has no effect.
    pub(crate) fn has_pools(&self) -> bool {
        matches!(self, Self::Pools(_))
    }

    pub(crate) fn pools(&mut self) -> Option<&mut Pools> {
        match self {
            Self::Pools(pools) => Some(pools),
            _ => None,
        }
    }

    pub(crate) fn single(&mut self) -> Option<&mut SingleAddresses> {
        match self {
            Self::Single(addresses) => Some(addresses),
            _ => None,
        }
    }

    pub(crate) fn allocate(&mut self, ip: IpAddr, owner: &str, pool: &str) -> Result<(), IpamError> {
        match self {
            Self::Range(range) => range.allocate(ip),
            Self::Pools(pools) => pools.allocate(ip, owner, pool),
            Self::Single(addresses) => addresses.allocate(ip, owner),
            Self::Delegated => Err(IpamError::Delegated),
        }
    }

    pub(crate) fn allocate_next(&mut self, owner: &str, pool: &str) -> Result<IpAddr, IpamError> {
        match self {
            Self::Range(range) => range.allocate_next().ok_or(IpamError::Full),
            Self::Pools(pools) => pools.allocate_next(owner, pool),
            Self::Single(addresses) => addresses.allocate_next(owner),
            Self::Delegated => Err(IpamError::Delegated),
        }
    }

    pub(crate) fn release(&mut self, ip: IpAddr, pool: &str) {
        match self {
            Self::Range(range) => range.release(ip),
            Self::Pools(pools) => pools.release(ip, pool),
            Self::Single(addresses) => addresses.release(ip),
            Self::Delegated => {}
        }
    }

    pub(crate) fn status(&self) -> String {
        match self {
            Self::Range(range) => {
                let network = range.network();
                format!(
                    "{}/{} allocated from {network}",
                    range.used(),
                    host_count(&network)
                )
            }
            Self::Pools(pools) => format!("{} IPAM pool(s) available", pools.count()),
            Self::Single(addresses) => format!("{}/{} allocated", addresses.used(), addresses.total()),
            Self::Delegated => "delegated to plugin".to_owned(),
        }
    }

    /// First network of a pool; empty: none.
    pub(crate) fn network(&self, pool: &str) -> String {
        match self {
            Self::Range(range) => range.network().to_string(),
            Self::Pools(pools) => pools
                .first_network(pool)
                .map_or_else(String::new, |network| network.to_string()),
            Self::Single(_) | Self::Delegated => String::new(),
        }
    }

    /// Number of addresses, for metrics: of a range all, of pools those that are free.
    pub(crate) fn capacity(&self) -> f64 {
        match self {
            Self::Range(range) => host_count(&range.network()) as f64,
            Self::Pools(pools) => pools.free() as f64,
            Self::Single(addresses) => addresses.total() as f64,
            Self::Delegated => 0.0,
        }
    }
}
