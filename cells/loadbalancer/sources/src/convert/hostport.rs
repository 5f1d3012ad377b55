// SPDX-License-Identifier: Apache-2.0

//! Host ports of pods: one service a pod and port.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use compact_str::CompactString;
use skep_k8s_types::slim::{ContainerPort, Pod, PodPhase};
use skep_loadbalancer_model::types::{
    BackendParams, FrontendKind, FrontendParams, L3n4Addr, L4Proto, Service, ServiceName,
};

use super::{Rules, address, port, protocol_or_tcp};

/// Stands between the pod's name and the port in names of host-port services.
pub const HOST_PORT_MARK: &str = ":host-port:";

/// Service, frontends and backends of one host port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPortService {
    /// Named `<namespace>/<pod>:host-port:<port>:<uid>`.
    pub service: Service,
    /// Sorted by address.
    pub frontends: Vec<FrontendParams>,
    /// The pod's addresses with the container's port, sorted.
    pub backends: Vec<BackendParams>,
}

/// Services for the host ports of a pod, sorted by port. None if the pod doesn't run, is going away, or uses the
/// host's network.
pub fn host_port_services(pod: &Pod, rules: &Rules) -> Vec<HostPortService> {
    let serves = pod.status.phase == PodPhase::Running
        && !pod.spec.host_network
        && pod.metadata.deletion_timestamp.is_none();
    if !serves || !rules.replaces_kube_proxy {
        return Vec::new();
    }
    let addresses: Vec<IpAddr> = pod
        .addresses()
        .filter_map(address)
        .filter(|&ip| rules.allows(ip))
        .collect();
    let mut ports: BTreeMap<u16, Vec<(&ContainerPort, L4Proto, u16)>> = BTreeMap::new();
    for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
        for each in container.ports.iter().filter(|port| port.host_port != 0) {
            match check(each, rules) {
                Ok((host_port, proto, target)) => {
                    ports.entry(host_port).or_default().push((each, proto, target))
                }
                Err(problem) => {
                    let name = format_args!("{}/{}", pod.metadata.namespace, pod.metadata.name);
                    tracing::warn!(pod = %name, host_port = each.host_port, problem, "Skipping host port");
                }
            }
        }
    }
    let service =
        |(host_port, ports): (u16, Vec<_>)| host_port_service(pod, &addresses, host_port, &ports, rules);
    ports.into_iter().filter_map(service).collect()
}

fn check(each: &ContainerPort, rules: &Rules) -> Result<(u16, L4Proto, u16), &'static str> {
    let host_port = port("hostPort", each.host_port).map_err(|_| "the number is not a port")?;
    let target =
        port("containerPort", each.container_port).map_err(|_| "the container port is not a port")?;
    if rules.node_ports.contains(host_port) {
        return Err("it lies in the range of node ports");
    }
    let proto = protocol_or_tcp(&each.protocol).ok_or("the protocol is unknown")?;
    Ok((host_port, proto, target))
}

fn host_port_service(
    pod: &Pod,
    addresses: &[IpAddr],
    host_port: u16,
    ports: &[(&ContainerPort, L4Proto, u16)],
    rules: &Rules,
) -> Option<HostPortService> {
    let meta = &pod.metadata;
    let warn = |problem: &str| {
        let name = format_args!("{}/{}", meta.namespace, meta.name);
        tracing::warn!(pod = %name, host_port, problem, "Skipping host port");
    };
    let mut frontends = Vec::new();
    let mut backends = Vec::new();
    let (mut on_loopback, mut elsewhere) = (false, false);
    for &(each, proto, target) in ports {
        for ip in host_addresses(each, addresses) {
            let Ok(ip) = ip else {
                warn("its address is malformed");
                continue;
            };
            if !rules.allows(ip) {
                continue;
            }
            let ip = if ip.is_loopback() {
                on_loopback = true;
                any_address(ip)
            } else {
                elsewhere = true;
                ip
            };
            frontends.push(FrontendParams {
                address: L3n4Addr::new(ip, host_port, proto),
                kind: FrontendKind::HostPort,
                port_name: CompactString::default(),
                service_port: host_port,
            });
        }
        let backend = |&ip| BackendParams::new(L3n4Addr::new(ip, target, proto), rules.source);
        backends.extend(addresses.iter().map(backend));
    }
    if on_loopback && elsewhere {
        warn("loopback and other addresses are mixed");
        return None;
    }
    if on_loopback && !rules.loopback_host_ports {
        warn("the kernel can't serve loopback addresses (no network namespace cookies)");
        return None;
    }
    frontends.sort_by_key(|frontend| frontend.address);
    frontends.dedup_by_key(|frontend| frontend.address);
    backends.sort_by_key(|backend| backend.address);
    backends.dedup_by_key(|backend| backend.address);
    let name = format!("{}{HOST_PORT_MARK}{host_port}:{}", meta.name, meta.uid);
    let mut service = Service::new(ServiceName::new(&meta.namespace, &name), rules.source);
    service.loopback_host_port = on_loopback;
    Some(HostPortService {
        service,
        frontends,
        backends,
    })
}

/// Addresses a host port is reachable at: the one it names, else any of the families that the pod has.
fn host_addresses(each: &ContainerPort, pod: &[IpAddr]) -> Vec<Result<IpAddr, ()>> {
    if each.host_ip.is_empty() {
        let mut any: Vec<IpAddr> = pod.iter().map(|&ip| any_address(ip)).collect();
        any.sort_unstable();
        any.dedup();
        return any.into_iter().map(Ok).collect();
    }
    vec![address(&each.host_ip).ok_or(())]
}

/// The unspecified address of the same family.
fn any_address(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
