// SPDX-License-Identifier: Apache-2.0

//! Backends of services and of endpoint slices: one for each address, protocol and port, with all names of the port.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use compact_str::CompactString;
use skep_clustermesh_types::{ClusterEndpointSlice, ClusterService, Conditions, Endpoint, Ports};
use skep_loadbalancer_model::types::{BackendZone, DEFAULT_WEIGHT, Names, annotation};
use skep_loadbalancer_model::{BackendParams, BackendState, L3n4Addr, L4Proto, Source};

type NamedPorts = Vec<(L4Proto, u16, Names)>;

pub(super) fn of_service(cluster_id: u32, service: &ClusterService) -> Vec<BackendParams> {
    let mut backends = Vec::new();
    // Most backends of a service have the same ports.
    let mut last: Option<(&Ports, NamedPorts)> = None;
    for (ip, ports) in &service.backends {
        let zone = service.zones.get(&ip.to_string()).map(|zone| {
            let hints = zone.for_zones.iter().flatten();
            backend_zone(&zone.zone, hints.map(|hint| hint.name.as_str()))
        });
        let named = match last.take() {
            Some((same, named)) if same == ports => named,
            _ => named_ports(
                ports
                    .iter()
                    .map(|(name, port)| (name.as_str(), port.protocol.as_str(), port.port)),
            ),
        };
        for (proto, port, names) in &named {
            backends.push(BackendParams {
                port_names: names.clone(),
                zone: zone.clone(),
                cluster_id,
                ..BackendParams::new(L3n4Addr::new(*ip, *port, *proto), Source::ClusterMesh)
            });
        }
        last = Some((ports, named));
    }
    backends
}

/// The backends of all slices of a service. Of an address that is in several, as while it moves from one to the other, the
/// best state counts.
pub(super) fn of_slices(cluster_id: u32, slices: &[Arc<ClusterEndpointSlice>]) -> Vec<BackendParams> {
    let mut backends: BTreeMap<L3n4Addr, BackendParams> = BTreeMap::new();
    for slice in slices {
        let ports = named_ports(slice.ports.iter().filter_map(|port| {
            let number = port.port.and_then(|number| u16::try_from(number).ok())?;
            Some((port.name(), port.protocol.as_deref().unwrap_or("TCP"), number))
        }));
        let weight = weight(slice);
        for endpoint in &slice.endpoints {
            let state = state(endpoint.conditions.unwrap_or_default(), weight);
            let zone = zone(endpoint);
            // Addresses were checked when the slice was read.
            let ips = endpoint
                .addresses
                .iter()
                .filter_map(|ip| ip.parse::<IpAddr>().ok());
            for ip in ips {
                for (proto, port, names) in &ports {
                    let params = BackendParams {
                        port_names: names.clone(),
                        zone: zone.clone(),
                        cluster_id,
                        state,
                        weight,
                        ..BackendParams::new(L3n4Addr::new(ip, *port, *proto), Source::ClusterMesh)
                    };
                    let is_better = |known: &BackendParams| state < known.state;
                    if backends.get(&params.address).is_none_or(is_better) {
                        backends.insert(params.address, params);
                    }
                }
            }
        }
    }
    backends.into_values().collect()
}

/// Distinct ports with their names, sorted. Protocols that the load balancer does not know, and port 0, serve nothing.
fn named_ports<'a>(ports: impl Iterator<Item = (&'a str, &'a str, u16)>) -> NamedPorts {
    let mut names: HashMap<(L4Proto, u16), Vec<CompactString>> = HashMap::new();
    for (name, protocol, port) in ports {
        let Ok(proto @ (L4Proto::Tcp | L4Proto::Udp | L4Proto::Sctp)) = protocol.parse::<L4Proto>() else {
            continue;
        };
        if port == 0 {
            continue;
        }
        let names = names.entry((proto, port)).or_default();
        names.extend((!name.is_empty()).then(|| name.into()));
    }
    let shared = |mut names: Vec<CompactString>| {
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            Names::ABSENT
        } else {
            names.into_iter().collect()
        }
    };
    names
        .into_iter()
        .map(|((proto, port), names)| (proto, port, shared(names)))
        .collect()
}

fn zone(endpoint: &Endpoint) -> Option<Arc<BackendZone>> {
    let zone = endpoint.zone.as_deref().filter(|zone| !zone.is_empty())?;
    let hints = endpoint.hints.iter().flat_map(|hints| &hints.for_zones);
    Some(backend_zone(zone, hints.map(|hint| hint.name())))
}

/// A zone; without hints they are absent, as those of backends of the own cluster.
fn backend_zone<'a>(zone: &str, hints: impl Iterator<Item = &'a str>) -> Arc<BackendZone> {
    let hints: Vec<CompactString> = hints.map(CompactString::from).collect();
    Arc::new(BackendZone {
        zone: zone.into(),
        for_zones: if hints.is_empty() {
            Names::ABSENT
        } else {
            hints.into_iter().collect()
        },
    })
}

/// The state by the conditions, with the defaults of Kubernetes, as that of backends of the own cluster.
fn state(conditions: Conditions, weight: u16) -> BackendState {
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

/// The weight of all backends of a slice. One that makes no sense counts as absent.
fn weight(slice: &ClusterEndpointSlice) -> u16 {
    let entry = slice
        .annotations
        .iter()
        .find(|entry| entry.key() == annotation::WEIGHT);
    entry
        .and_then(|entry| entry.value().parse().ok())
        .unwrap_or(DEFAULT_WEIGHT)
}

#[cfg(test)]
mod tests {
    use skep_clustermesh_types::{EndpointPort, Hints, NamedHint, TextEntry};

    use super::*;

    fn endpoint(ip: &str, conditions: [Option<bool>; 3]) -> Endpoint {
        let [ready, serving, terminating] = conditions;
        Endpoint {
            addresses: vec![ip.to_owned()],
            conditions: Some(Conditions {
                ready,
                serving,
                terminating,
            }),
            ..Endpoint::default()
        }
    }

    fn slice(endpoints: Vec<Endpoint>) -> ClusterEndpointSlice {
        let port = EndpointPort {
            name: Some("http".into()),
            port: Some(80),
            ..EndpointPort::default()
        };
        ClusterEndpointSlice {
            endpoints,
            ports: vec![port],
            ..ClusterEndpointSlice::default()
        }
    }

    fn texts(slices: Vec<ClusterEndpointSlice>) -> Vec<String> {
        let slices: Vec<_> = slices.into_iter().map(Arc::new).collect();
        let text = |params: BackendParams| format!("{} {} {}", params.address, params.state, params.weight);
        of_slices(7, &slices).into_iter().map(text).collect()
    }

    #[test]
    fn conditions_are_those_of_kubernetes() {
        let (yes, no) = (Some(true), Some(false));
        let endpoints = vec![
            endpoint("10.0.0.1", [None, None, None]),
            endpoint("10.0.0.2", [no, yes, yes]),
            endpoint("10.0.0.3", [no, no, yes]),
            endpoint("10.0.0.4", [no, no, no]),
            endpoint("10.0.0.5", [no, None, yes]),
        ];
        assert_eq!(
            texts(vec![slice(endpoints)]),
            [
                "10.0.0.1:80/TCP active 100",
                "10.0.0.2:80/TCP terminating 100",
                "10.0.0.3:80/TCP terminating-not-serving 100",
                "10.0.0.4:80/TCP maintenance 100",
                "10.0.0.5:80/TCP terminating 100",
            ]
        );
    }

    #[test]
    fn the_best_state_of_an_address_counts_and_weights_are_annotations() {
        let gone = slice(vec![endpoint("10.0.0.1", [Some(false), Some(true), Some(true)])]);
        let mut here = slice(vec![
            endpoint("10.0.0.1", [None; 3]),
            endpoint("10.0.0.2", [None; 3]),
        ]);
        let weight = |value: &str| TextEntry {
            key: Some(annotation::WEIGHT.into()),
            value: Some(value.into()),
        };
        here.annotations = vec![weight("7")];
        let expected = ["10.0.0.1:80/TCP active 7", "10.0.0.2:80/TCP active 7"];
        assert_eq!(texts(vec![gone.clone(), here.clone()]), expected);
        assert_eq!(texts(vec![here.clone(), gone]), expected);
        here.annotations = vec![weight("0")];
        assert_eq!(texts(vec![here.clone()])[0], "10.0.0.1:80/TCP maintenance 0");
        here.annotations = vec![weight("heavy")];
        assert_eq!(texts(vec![here])[0], "10.0.0.1:80/TCP active 100");
    }

    #[test]
    fn zones_have_hints() {
        let mut endpoint = endpoint("10.0.0.1", [None; 3]);
        endpoint.zone = Some("z-a".into());
        let hint = NamedHint {
            name: Some("z-b".into()),
        };
        endpoint.hints = Some(Hints {
            for_zones: vec![hint],
            for_nodes: vec![],
        });

        let backends = of_slices(7, &[Arc::new(slice(vec![endpoint]))]);

        let zone = backends[0].zone.as_ref().expect("there is a zone");
        assert_eq!(
            (zone.zone.as_str(), zone.for_zones.contains("z-b")),
            ("z-a", true)
        );
        assert_eq!(
            (backends[0].cluster_id, backends[0].port_names.as_slice()),
            (7, &["http".into()][..])
        );
    }

    #[test]
    fn ports_that_nothing_can_be_done_with_are_left_out() {
        let mut slice = slice(vec![endpoint("10.0.0.1", [None; 3])]);
        let port = |protocol: Option<&str>, port| EndpointPort {
            protocol: protocol.map(Into::into),
            port,
            ..EndpointPort::default()
        };
        slice.ports = vec![
            port(None, None),
            port(None, Some(0)),
            port(None, Some(65_536)),
            port(Some("ICMP"), Some(1)),
            port(Some("UDP"), Some(53)),
        ];
        assert_eq!(texts(vec![slice]), ["10.0.0.1:53/UDP active 100"]);
    }
}
