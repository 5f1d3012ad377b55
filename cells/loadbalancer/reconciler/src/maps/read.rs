// SPDX-License-Identifier: Apache-2.0

//! What is in the maps, for both families at once and in host order.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use skep_bpf_maps::lb::ServiceValue;
use skep_bpf_sys::MapError;
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto, Scope};

use super::LoadBalancerMaps;

/// Value of a backend entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendValue {
    /// Address, with cluster id.
    pub address: L3n4Addr,
    /// State byte: 0 active, 1 terminating, 2 quarantined, 3 maintenance.
    pub state: u8,
    /// Number of the zone, 0: unknown.
    pub zone: u8,
}

/// Each method visits every entry of a map or a pair of maps, in no particular order, and returns an error if a map cannot
/// be read. Entries before the error were visited.
#[allow(clippy::missing_errors_doc, reason = "said once for all")]
impl LoadBalancerMaps {
    /// Service entries: frontend address, slot, value. Slot 0 is the master.
    pub fn each_service(&self, mut visit: impl FnMut(L3n4Addr, u16, ServiceValue)) -> Result<(), MapError> {
        self.services.v4.for_each(|key, value| {
            let address = address(key.addr(), key.port.get(), key.proto, key.scope);
            visit(address, key.slot, value);
        })?;
        self.services.v6.for_each(|key, value| {
            let address = address(key.addr(), key.port.get(), key.proto, key.scope);
            visit(address, key.slot, value);
        })
    }

    /// Backends: id and value.
    pub fn each_backend(&self, mut visit: impl FnMut(u32, BackendValue)) -> Result<(), MapError> {
        self.backends.v4.for_each(|key, raw| {
            let address = address(raw.addr(), raw.port.get(), raw.proto, 0).in_cluster(raw.cluster_id.into());
            let (state, zone) = (raw.state, raw.zone);
            visit(key.id, BackendValue { address, state, zone });
        })?;
        self.backends.v6.for_each(|key, raw| {
            let address = address(raw.addr(), raw.port.get(), raw.proto, 0).in_cluster(raw.cluster_id.into());
            let (state, zone) = (raw.state, raw.zone);
            visit(key.id, BackendValue { address, state, zone });
        })
    }

    /// Reverse NAT: service id and its address.
    pub fn each_reverse_nat(&self, mut visit: impl FnMut(u16, SocketAddr)) -> Result<(), MapError> {
        self.reverse_nat.v4.for_each(|key, value| {
            visit(key.rev_nat.get(), SocketAddr::new(value.addr(), value.port.get()));
        })?;
        self.reverse_nat.v6.for_each(|key, value| {
            visit(key.rev_nat.get(), SocketAddr::new(value.addr(), value.port.get()));
        })
    }

    /// Affinity matches: service id and backend id.
    pub fn each_affinity(&self, mut visit: impl FnMut(u16, u32)) -> Result<(), MapError> {
        self.affinity
            .for_each(|key, _| visit(key.rev_nat.get(), key.backend_id))
    }

    /// Client networks: service id and network.
    pub fn each_source_range(&self, mut visit: impl FnMut(u16, IpNet)) -> Result<(), MapError> {
        let mut range = |id: u16, (ip, bits): (IpAddr, u8)| {
            if let Ok(cidr) = IpNet::new(ip, bits) {
                visit(id, cidr);
            }
        };
        let maps = &self.source_ranges;
        maps.v4.for_each(|key, _| range(key.rev_nat.get(), key.cidr()))?;
        maps.v6.for_each(|key, _| range(key.rev_nat.get(), key.cidr()))
    }

    /// Maglev tables: service id, whether its address is of IPv6, backend ids.
    pub fn each_maglev(&self, mut visit: impl FnMut(u16, bool, Vec<u32>)) -> Result<(), MapError> {
        for ipv6 in [false, true] {
            let map = self.maglev.of(ipv6);
            map.for_each(|key, table| visit(key.rev_nat.get(), ipv6, table))?;
        }
        Ok(())
    }

    /// Number of entries of all maps.
    pub fn count(&self) -> Result<usize, MapError> {
        let mut count = 0;
        self.each_service(|_, _, _| count += 1)?;
        self.each_backend(|_, _| count += 1)?;
        self.each_reverse_nat(|_, _| count += 1)?;
        self.each_affinity(|_, _| count += 1)?;
        self.each_source_range(|_, _| count += 1)?;
        self.each_maglev(|_, _, _| count += 1)?;
        Ok(count)
    }
}

fn address(ip: IpAddr, port: u16, proto: u8, scope: u8) -> L3n4Addr {
    let scope = if scope == 0 {
        Scope::External
    } else {
        Scope::Internal
    };
    L3n4Addr::with_scope(ip, port, L4Proto::from_number(proto), scope)
}
