// SPDX-License-Identifier: Apache-2.0

//! Mode `crd`: single addresses that an external controller lists in the CiliumNode.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::{Family, IpamError};

/// An address of the CiliumNode: owner and resource, such as the id of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SingleAddress {
    pub(crate) owner: String,
    pub(crate) resource: String,
}

/// Addresses of one family.
#[derive(Debug)]
pub(crate) struct SingleAddresses {
    family: Family,
    /// With their resources.
    available: BTreeMap<IpAddr, String>,
    used: BTreeMap<IpAddr, SingleAddress>,
    /// Addresses that the controller wants back.
    withdrawn: BTreeSet<IpAddr>,
}

impl SingleAddresses {
    pub(crate) fn new(family: Family) -> Self {
        Self {
            family,
            available: BTreeMap::new(),
            used: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
        }
    }

    /// Applies the addresses in the CiliumNode, with their resources, and those that are to be released.
    pub(crate) fn update(&mut self, available: &BTreeMap<IpAddr, String>, withdrawn: &BTreeSet<IpAddr>) {
        let own = |ip: &IpAddr| Family::of(*ip) == self.family;
        self.available = available
            .iter()
            .filter(|(ip, _)| own(ip))
            .map(|(ip, resource)| (*ip, resource.clone()))
            .collect();
        self.withdrawn = withdrawn.iter().filter(|ip| own(ip)).copied().collect();
    }

    pub(crate) fn allocate(&mut self, ip: IpAddr, owner: &str) -> Result<(), IpamError> {
        if self.used.contains_key(&ip) {
            return Err(IpamError::Allocated);
        }
        let resource = self.available.get(&ip).filter(|_| !self.withdrawn.contains(&ip));
        let resource = resource.ok_or(IpamError::NotAvailable(ip))?.clone();
        let owner = owner.to_owned();
        self.used.insert(ip, SingleAddress { owner, resource });
        Ok(())
    }

    pub(crate) fn allocate_next(&mut self, owner: &str) -> Result<IpAddr, IpamError> {
        let mut free = self.available.keys();
        let ip = free.find(|ip| !self.used.contains_key(ip) && !self.withdrawn.contains(ip));
        let ip = *ip.ok_or(IpamError::NoneAvailable)?;
        self.allocate(ip, owner)?;
        Ok(ip)
    }

    pub(crate) fn release(&mut self, ip: IpAddr) {
        self.used.remove(&ip);
    }

    pub(crate) fn addresses_in_use(&self) -> &BTreeMap<IpAddr, SingleAddress> {
        &self.used
    }

    pub(crate) fn used(&self) -> usize {
        self.used.len()
    }

    pub(crate) fn total(&self) -> usize {
        self.available.len()
    }
}
