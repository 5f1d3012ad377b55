// SPDX-License-Identifier: Apache-2.0

//! Keys and values as the maps hold them, from addresses and ids in host order.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use skep_bpf_maps::lb::{
    AffinityMatchKey, Backend4, Backend6, BackendKey as RawBackendKey, MaglevKey, ReverseNat4, ReverseNat6,
    ReverseNatKey, Scope as RawScope, Service4Key, Service6Key, SourceRange4Key, SourceRange6Key,
};
use skep_datapath_maps::IpEither;
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto, Scope};

use super::BackendValue;

/// Key of a service entry: slot 0 is the master, others name backends.
pub type ServiceKey = IpEither<Service4Key, Service6Key>;
/// Key of a backend. Ids are unique over both families; the family says which map.
pub type BackendKey = IpEither<RawBackendKey, RawBackendKey>;
/// Key of a client network.
pub type SourceRangeKey = IpEither<SourceRange4Key, SourceRange6Key>;

/// Key of the entry of a frontend address in a slot. The cluster of the address is not part of it.
pub fn service(address: &L3n4Addr, slot: u16) -> ServiceKey {
    let (port, proto) = (address.port(), address.proto().number());
    let scope = match address.scope() {
        Scope::External => RawScope::External,
        Scope::Internal => RawScope::Internal,
    };
    match address.ipv4() {
        Some(ip) => IpEither::V4(Service4Key::new(ip, port, proto, scope).at(slot)),
        None => {
            let ip = (*address.ip_bytes()).into();
            IpEither::V6(Service6Key::new(ip, port, proto, scope).at(slot))
        }
    }
}

/// Key of the entry that marks an address as a service address, whatever the port.
pub fn wildcard(ip: IpAddr) -> ServiceKey {
    service(&L3n4Addr::new(ip, 0, L4Proto::Any), 0)
}

/// Whether the entry of an address in a slot is a wildcard entry.
pub fn is_wildcard(address: &L3n4Addr, slot: u16) -> bool {
    slot == 0 && address.port() == 0 && address.proto() == L4Proto::Any && address.scope() == Scope::External
}

/// Key of the backend with this id, by the family of its address.
pub fn backend(id: u32, ipv6: bool) -> BackendKey {
    IpEither::of(ipv6, RawBackendKey::new(id))
}

/// Entry of the backend with this id.
pub fn backend_entry(
    id: u32,
    value: &BackendValue,
) -> IpEither<(RawBackendKey, Backend4), (RawBackendKey, Backend6)> {
    let key = RawBackendKey::new(id);
    let BackendValue { address, state, zone } = *value;
    let (port, proto) = (address.port(), address.proto().number());
    // The field has 16 bits; larger ids do not exist.
    let cluster_id = address.cluster_id() as u16;
    match address.ipv4() {
        Some(ip) => {
            let value = Backend4 {
                state,
                zone,
                cluster_id,
                ..Backend4::new(ip, port, proto)
            };
            IpEither::V4((key, value))
        }
        None => {
            let value = Backend6 {
                state,
                zone,
                cluster_id,
                ..Backend6::new((*address.ip_bytes()).into(), port, proto)
            };
            IpEither::V6((key, value))
        }
    }
}

/// Key of the reverse NAT entry of a service, by the family of its address.
pub fn reverse_nat(id: u16, ipv6: bool) -> IpEither<ReverseNatKey, ReverseNatKey> {
    IpEither::of(ipv6, ReverseNatKey::new(id))
}

/// Reverse NAT entry of a service.
pub fn reverse_nat_entry(
    id: u16,
    address: SocketAddr,
) -> IpEither<(ReverseNatKey, ReverseNat4), (ReverseNatKey, ReverseNat6)> {
    let (key, port) = (ReverseNatKey::new(id), address.port());
    match address.ip() {
        IpAddr::V4(ip) => IpEither::V4((key, ReverseNat4::new(ip, port))),
        IpAddr::V6(ip) => IpEither::V6((key, ReverseNat6::new(ip, port))),
    }
}

/// Key of an affinity match of a service and a backend.
pub fn affinity(id: u16, backend: u32) -> AffinityMatchKey {
    AffinityMatchKey::new(backend, id)
}

/// Key of a client network of a service; only the masked bits of the network count.
pub fn source_range(id: u16, cidr: &IpNet) -> SourceRangeKey {
    match cidr.trunc() {
        IpNet::V4(net) => IpEither::V4(SourceRange4Key::new(id, net.network(), net.prefix_len())),
        IpNet::V6(net) => IpEither::V6(SourceRange6Key::new(id, net.network(), net.prefix_len())),
    }
}

/// Key of the Maglev table of a service, by the family of its address.
pub fn maglev(id: u16, ipv6: bool) -> IpEither<MaglevKey, MaglevKey> {
    IpEither::of(ipv6, MaglevKey::new(id))
}
