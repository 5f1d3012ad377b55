// SPDX-License-Identifier: Apache-2.0

//! An endpoint slice: some of the backends of a service.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};

use compact_str::CompactString;
use skep_k8s::slim;
use skep_loadbalancer_model::types::annotation::WEIGHT;
use skep_loadbalancer_model::types::{
    BackendParams, BackendState, BackendZone, DEFAULT_WEIGHT, L3n4Addr, L4Proto, Names, ServiceName,
};
use smallvec::SmallVec;

use super::{Interner, Rules, address, protocol_or_tcp};

/// Topology keys of the beta API.
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Stands for "no backend" in services that the Ingress controller makes.
const INGRESS_DUMMY: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(192, 192, 192, 192)), 9999);

/// Backends that a slice gives to a service, sorted by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceBackends {
    /// The service.
    pub service: ServiceName,
    /// Its backends; no address twice.
    pub backends: Vec<BackendParams>,
}

/// Converts a slice; `None` if it belongs to no service.
pub fn endpoint_slice(
    slice: &slim::EndpointSlice,
    rules: &Rules,
    interner: &mut Interner,
) -> Option<SliceBackends> {
    let service = ServiceName::new(&slice.metadata.namespace, slice.service_name()?);
    let mut backends = in_order(slice, &slice.endpoints, rules, interner).backends;
    sort(&mut backends);
    Some(SliceBackends { service, backends })
}

/// Sorts backends by address. Of those with one address the last one counts.
pub(crate) fn sort(backends: &mut Vec<BackendParams>) {
    if !backends.is_sorted_by(|a, b| a.address < b.address) {
        backends.reverse();
        backends.sort_by_key(|backend| backend.address);
        backends.dedup_by_key(|backend| backend.address);
    }
}

/// Backends one endpoint after the other.
pub(crate) struct InOrder {
    pub(crate) backends: Vec<BackendParams>,
    /// Ports of each address.
    pub(crate) ports: usize,
}

/// Backends that some endpoints of a slice stand for.
pub(crate) fn in_order(
    slice: &slim::EndpointSlice,
    endpoints: &[slim::Endpoint],
    rules: &Rules,
    interner: &mut Interner,
) -> InOrder {
    let (mut backends, mut count) = (Vec::new(), 0);
    if matches!(slice.address_type, slim::AddressType::V4 | slim::AddressType::V6) {
        let ports = ports(slice, interner);
        let weight = weight(slice);
        count = ports.len();
        backends.reserve_exact(endpoints.len() * count);
        for endpoint in endpoints {
            add(&mut backends, endpoint, &ports, weight, rules, interner);
        }
    }
    InOrder {
        backends,
        ports: count,
    }
}

/// A number that stands for all that counts of a slice beside its service and its endpoints.
pub(crate) fn mark_of_slice(slice: &slim::EndpointSlice, hasher: &impl BuildHasher) -> u64 {
    let mut state = hasher.build_hasher();
    slice.address_type.hash(&mut state);
    slice.metadata.annotations.get(WEIGHT).hash(&mut state);
    for slim::EndpointPort { name, protocol, port } in &slice.ports {
        (name.as_deref(), protocol, port).hash(&mut state);
    }
    state.finish()
}

/// A number that stands for all that counts of an endpoint, in slices of one [mark](mark_of_slice).
pub(crate) fn mark_of_endpoint(endpoint: &slim::Endpoint, hasher: &impl BuildHasher) -> u64 {
    let slim::Endpoint {
        addresses,
        conditions,
        deprecated_topology: topology,
        node_name,
        zone,
        hints,
    } = endpoint;
    let slim::EndpointConditions {
        ready,
        serving,
        terminating,
    } = *conditions;
    let mut state = hasher.build_hasher();
    let [a, b, c] = [ready, serving, terminating].map(|condition| condition.map_or(2, u8::from));
    let [d, e] = [node_name, zone].map(|place| u8::from(place.is_some()));
    state.write_u64(u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]) | (addresses.len() as u64) << 40);
    // Lengths of texts count.
    for address in addresses {
        state.write(address.as_bytes());
    }
    if let Some(node) = node_name {
        state.write(node.as_bytes());
    }
    if let Some(zone) = zone {
        state.write(zone.as_bytes());
    }
    if !topology.is_empty() {
        (topology.get(HOSTNAME), topology.get(ZONE)).hash(&mut state);
    }
    for hint in hints.iter().flat_map(|hints| &hints.for_zones) {
        state.write(hint.name.as_bytes());
    }
    state.finish()
}

/// A port with all of its names.
type Port = (L4Proto, u16, SmallVec<[CompactString; 1]>);

/// Distinct ports with their names. An endpoint port without number means all ports, which no frontend can use.
fn ports(slice: &slim::EndpointSlice, interner: &mut Interner) -> SmallVec<[(L4Proto, u16, Names); 2]> {
    let mut ports: SmallVec<[Port; 2]> = SmallVec::new();
    for port in &slice.ports {
        let number = port
            .port
            .and_then(|number| u16::try_from(number).ok())
            .filter(|&number| number != 0);
        let (Some(number), Some(proto)) = (number, protocol_or_tcp(&port.protocol)) else {
            continue;
        };
        let at = ports
            .iter()
            .position(|known| (known.0, known.1) == (proto, number))
            .unwrap_or_else(|| {
                ports.push((proto, number, SmallVec::new()));
                ports.len() - 1
            });
        let names = &mut ports[at].2;
        let name = port
            .name
            .as_ref()
            .filter(|name| !name.is_empty() && !names.contains(name));
        names.extend(name.cloned());
    }
    let interned = |(proto, number, names): Port| {
        let names = if names.is_empty() {
            Names::ABSENT
        } else {
            interner.names(&names)
        };
        (proto, number, names)
    };
    ports.into_iter().map(interned).collect()
}

/// Weight of all backends of the slice.
fn weight(slice: &slim::EndpointSlice) -> u16 {
    let Some(text) = slice.metadata.annotations.get(WEIGHT) else {
        return DEFAULT_WEIGHT;
    };
    text.parse().unwrap_or_else(|error| {
        let name = format_args!("{}/{}", slice.metadata.namespace, slice.metadata.name);
        tracing::warn!(endpointslice = %name, annotation = WEIGHT, value = text, %error,
            "Cannot read a weight, the default is used");
        DEFAULT_WEIGHT
    })
}

fn state(conditions: slim::EndpointConditions, weight: u16) -> BackendState {
    let ready = conditions.ready.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(true);
    let terminating = conditions.terminating.unwrap_or(false);
    match (weight, ready, terminating, serving) {
        (0, ..) => BackendState::Maintenance,
        (_, true, ..) => BackendState::Active,
        (_, _, true, false) => BackendState::TerminatingNotServing,
        (_, _, true, true) => BackendState::Terminating,
        _ => BackendState::Maintenance,
    }
}

fn add(
    backends: &mut Vec<BackendParams>,
    endpoint: &slim::Endpoint,
    ports: &[(L4Proto, u16, Names)],
    weight: u16,
    rules: &Rules,
    interner: &mut Interner,
) {
    let topology = &endpoint.deprecated_topology;
    let node = endpoint
        .node_name
        .as_deref()
        .or_else(|| topology.get(HOSTNAME))
        .filter(|node| !node.is_empty());
    let node = node.map(|node| interner.text(node));
    let zone = endpoint
        .zone
        .as_deref()
        .or_else(|| topology.get(ZONE))
        .filter(|zone| !zone.is_empty());
    let zone = zone.map(|zone| {
        let hints = endpoint
            .hints
            .as_ref()
            .map(|hints| &hints.for_zones[..])
            .unwrap_or_default();
        let for_zones = match hints {
            [] => Names::ABSENT,
            hints => hints.iter().map(|hint| hint.name.clone()).collect(),
        };
        interner.zone(BackendZone {
            zone: zone.into(),
            for_zones,
        })
    });
    let state = state(endpoint.conditions, weight);
    for text in &endpoint.addresses {
        let Some(ip) = address(text) else {
            tracing::warn!(address = %text, "Skipping an endpoint whose address is malformed");
            continue;
        };
        if !rules.allows(ip) {
            continue;
        }
        for (proto, number, port_names) in ports {
            if (ip, *number) == INGRESS_DUMMY {
                continue;
            }
            backends.push(BackendParams {
                port_names: port_names.clone(),
                weight,
                node_name: node.clone(),
                zone: zone.clone(),
                state,
                ..BackendParams::new(L3n4Addr::new(ip, *number, *proto), rules.source)
            });
        }
    }
}
