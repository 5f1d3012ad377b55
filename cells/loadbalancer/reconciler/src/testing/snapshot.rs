// SPDX-License-Identifier: Apache-2.0

//! Copies of the maps' content in memory, to be written back later: a stand-in for maps that outlive an agent.

use std::net::SocketAddr;

use ipnet::IpNet;
use skep_bpf_maps::lb::ServiceValue;
use skep_bpf_sys::MapError;
use skep_datapath_maps::transaction::{Stage, StagedMap, Updates, WriteError};
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto};

use crate::maps::{BackendValue, LoadBalancerMaps, key};

/// Content of the service, backend, reverse NAT, affinity and source range maps.
#[derive(Clone, Debug, Default)]
pub struct MapSnapshot {
    services: Vec<(L3n4Addr, u16, ServiceValue)>,
    backends: Vec<(u32, BackendValue)>,
    reverse_nat: Vec<(u16, SocketAddr)>,
    affinity: Vec<(u16, u32)>,
    source_ranges: Vec<(u16, IpNet)>,
}

impl MapSnapshot {
    /// Adds what is in the maps now.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn take(&mut self, maps: &LoadBalancerMaps) -> Result<(), MapError> {
        maps.each_service(|address, slot, value| self.services.push((address, slot, value)))?;
        maps.each_backend(|id, value| self.backends.push((id, value)))?;
        maps.each_reverse_nat(|id, address| self.reverse_nat.push((id, address)))?;
        maps.each_affinity(|id, backend| self.affinity.push((id, backend)))?;
        maps.each_source_range(|id, cidr| self.source_ranges.push((id, cidr)))
    }

    /// Writes everything back without clearing the maps first. With `any_proto`, services and backends get
    /// protocol `ANY`, as versions without protocol support wrote them.
    ///
    /// # Errors
    /// The first entry of a map that cannot be written; those behind it are written all the same, other maps are not.
    pub fn restore(&self, maps: &LoadBalancerMaps, any_proto: bool) -> Result<(), WriteError> {
        let proto = |address: L3n4Addr| match any_proto {
            true => address.with_proto(L4Proto::Any),
            false => address,
        };
        let services = self.services.iter();
        let services =
            services.map(|(address, slot, value)| key::service(&proto(*address), *slot).with(*value));
        write(services, &maps.services)?;
        let backends = self.backends.iter().map(|(id, value)| {
            let address = proto(value.address);
            key::backend_entry(*id, &BackendValue { address, ..*value })
        });
        write(backends, &maps.backends)?;
        let reverse_nat = self.reverse_nat.iter();
        write(
            reverse_nat.map(|(id, address)| key::reverse_nat_entry(*id, *address)),
            &maps.reverse_nat,
        )?;
        let affinity = self.affinity.iter();
        write(
            affinity.map(|(id, backend)| (key::affinity(*id, *backend), 0)),
            &maps.affinity,
        )?;
        let ranges = self.source_ranges.iter();
        write(
            ranges.map(|(id, cidr)| key::source_range(*id, cidr).with(0)),
            &maps.source_ranges,
        )
    }
}

fn write<M: StagedMap>(
    entries: impl Iterator<Item = <Updates<M> as Stage>::Entry>,
    map: &M,
) -> Result<(), WriteError> {
    let mut stage = Updates::<M>::default();
    entries.for_each(|entry| stage.push(0, entry));
    let mut first = None;
    stage.write(map, |_, error| first = first.take().or(Some(error)));
    first.map_or(Ok(()), Err)
}
