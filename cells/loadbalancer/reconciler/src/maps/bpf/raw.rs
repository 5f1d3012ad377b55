// SPDX-License-Identifier: Apache-2.0

//! Keys and values as the kernel's maps hold them, and back.

use std::net::IpAddr;

use ipnet::IpNet;
use skep_bpf_maps::lb::{
    AffinityMatchKey, Backend4, Backend6, ReverseNat4, ReverseNat6, Scope as RawScope, Service4Key,
    Service6Key, ServiceValue, SourceRange4Key, SourceRange6Key,
};
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto, Scope};

use crate::maps::{AffinityKey, BackendKey, BackendValue, MapEntry, RevNatValue, ServiceKey, SourceRangeKey};

/// What goes into the map of one family or into that of the other.
pub(super) enum Family<A, B> {
    V4(A),
    V6(B),
}

impl<A, B> Family<A, B> {
    pub(super) fn map<C, D>(self, v4: impl FnOnce(A) -> C, v6: impl FnOnce(B) -> D) -> Family<C, D> {
        match self {
            Self::V4(a) => Family::V4(v4(a)),
            Self::V6(b) => Family::V6(v6(b)),
        }
    }

    /// A key with its value, which is the same for both families.
    pub(super) fn and<V: Copy>(self, value: &V) -> Family<(A, V), (B, V)> {
        self.map(|key| (key, *value), |key| (key, *value))
    }
}

impl<A> Family<A, A> {
    /// Of a form that does not depend on the family.
    pub(super) fn both(ipv6: bool, form: A) -> Self {
        if ipv6 { Self::V6(form) } else { Self::V4(form) }
    }
}

pub(super) fn service(key: &ServiceKey) -> Family<Service4Key, Service6Key> {
    let addr = &key.address;
    let (port, proto) = (addr.port(), addr.proto().number());
    let scope = match addr.scope() {
        Scope::External => RawScope::External,
        Scope::Internal => RawScope::Internal,
    };
    match addr.ipv4() {
        Some(ip) => Family::V4(Service4Key::new(ip, port, proto, scope).at(key.slot)),
        None => {
            let ip = (*addr.ip_bytes()).into();
            Family::V6(Service6Key::new(ip, port, proto, scope).at(key.slot))
        }
    }
}

pub(super) fn backend(value: &BackendValue) -> Family<Backend4, Backend6> {
    let BackendValue { state, zone, .. } = *value;
    let addr = &value.address;
    let (port, proto) = (addr.port(), addr.proto().number());
    // The field has 16 bits; larger ids do not exist.
    let cluster_id = addr.cluster_id() as u16;
    match addr.ipv4() {
        Some(ip) => Family::V4(Backend4 {
            state,
            zone,
            cluster_id,
            ..Backend4::new(ip, port, proto)
        }),
        None => Family::V6(Backend6 {
            state,
            zone,
            cluster_id,
            ..Backend6::new((*addr.ip_bytes()).into(), port, proto)
        }),
    }
}

pub(super) fn reverse(value: &RevNatValue) -> Family<ReverseNat4, ReverseNat6> {
    match value.ip {
        IpAddr::V4(ip) => Family::V4(ReverseNat4::new(ip, value.port)),
        IpAddr::V6(ip) => Family::V6(ReverseNat6::new(ip, value.port)),
    }
}

pub(super) fn affinity(key: &AffinityKey) -> AffinityMatchKey {
    AffinityMatchKey::new(key.backend, key.id)
}

pub(super) fn source_range(key: &SourceRangeKey) -> Family<SourceRange4Key, SourceRange6Key> {
    match key.cidr.trunc() {
        IpNet::V4(net) => Family::V4(SourceRange4Key::new(key.id, net.network(), net.prefix_len())),
        IpNet::V6(net) => Family::V6(SourceRange6Key::new(key.id, net.network(), net.prefix_len())),
    }
}

pub(super) fn address(ip: impl Into<IpAddr>, port: u16, proto: u8, scope: u8) -> L3n4Addr {
    let scope = if scope == 0 {
        Scope::External
    } else {
        Scope::Internal
    };
    L3n4Addr::with_scope(ip.into(), port, L4Proto::from_number(proto), scope)
}

pub(super) fn service_entry(address: L3n4Addr, slot: u16, value: ServiceValue) -> MapEntry {
    MapEntry::Service(ServiceKey { address, slot }, value)
}

pub(super) fn backend_entry(id: u32, address: L3n4Addr, state: u8, zone: u8) -> MapEntry {
    let ipv6 = address.is_ipv6();
    MapEntry::Backend(BackendKey { id, ipv6 }, BackendValue { address, state, zone })
}
