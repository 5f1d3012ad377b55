// SPDX-License-Identifier: Apache-2.0

//! An endpoint slice: some of the backends of a service.

use std::net::{IpAddr, Ipv4Addr};

use compact_str::CompactString;
use skep_k8s_types::slim;
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

/// Backends of a service in a slice, sorted by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceBackends {
    /// The service.
    pub service: ServiceName,
    /// Its backends; no address twice.
    pub backends: Vec<BackendParams>,
}

/// Converts a slice; `None` if it belongs to no service. Of endpoints with one address the best state counts.
pub fn endpoint_slice(
    slice: &slim::EndpointSlice,
    rules: &Rules,
    interner: &mut Interner,
) -> Option<SliceBackends> {
    let service = ServiceName::new(&slice.metadata.namespace, slice.service_name()?);
    let mut backends = Vec::new();
    if matches!(slice.address_type, slim::AddressType::V4 | slim::AddressType::V6) {
        let ports = ports(slice, interner);
        let weight = weight(slice);
        backends.reserve_exact(slice.endpoints.len() * ports.len());
        for endpoint in &slice.endpoints {
            add(&mut backends, endpoint, &ports, weight, rules, interner);
        }
    }
    Some(SliceBackends {
        service,
        backends: distinct(backends),
    })
}

/// Sorts backends by address; several claims to one become one, in whatever order they are.
pub(crate) fn distinct(mut backends: Vec<BackendParams>) -> Vec<BackendParams> {
    if backends.is_sorted_by(|a, b| a.address < b.address) {
        return backends;
    }
    backends.sort_by_key(|backend| backend.address);
    if backends.is_sorted_by(|a, b| a.address < b.address) {
        return backends;
    }
    let claims = backends.chunk_by(|a, b| a.address == b.address);
    claims.filter_map(BackendParams::of_claims).collect()
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
            "Invalid weight, using the default");
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
            tracing::warn!(address = %text, "Skipping endpoint with invalid address");
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
