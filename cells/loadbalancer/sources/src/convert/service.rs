// SPDX-License-Identifier: Apache-2.0

//! A Kubernetes service: its row, and a frontend for every address it can be reached at.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use ipnet::IpNet;
use skep_k8s_types::slim;
use skep_loadbalancer_model::types::annotation::{AFFINITY, FORWARDING_MODE, TYPE, unknown_affinity};
use skep_loadbalancer_model::types::{
    ForwardingMode, FrontendKind, FrontendParams, L3n4Addr, L4Proto, Scope, Service, ServiceName, StringMap,
    TrafficDistribution, TrafficPolicy,
};
use smallvec::SmallVec;

use super::{ConvertError, Fault, Rules, address, port, protocol};

/// Label that marks headless services.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Annotations that ask for zone hints, the stronger one first.
const TOPOLOGY: [&str; 2] = [
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];
/// How long a client stays with its backend unless the service says otherwise: three hours, as in Kubernetes.
const DEFAULT_AFFINITY_TIMEOUT: Duration = Duration::from_secs(10800);

/// A service and its frontends, sorted by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceFrontends {
    /// The row of table `services`.
    pub service: Service,
    /// What becomes rows of table `frontends`; no address twice.
    pub frontends: Vec<FrontendParams>,
}

/// Converts a service.
pub fn service(object: &slim::Service, rules: &Rules) -> Result<ServiceFrontends, ConvertError> {
    let meta = &object.metadata;
    let error = |fault| ConvertError {
        kind: "service",
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
        fault,
    };
    if meta.name.is_empty() {
        return Err(error(Fault::Missing("name")));
    }
    if meta.namespace.is_empty() {
        return Err(error(Fault::Missing("namespace")));
    }
    let service = row(object, rules).map_err(error)?;
    let frontends = frontends(object, &service, rules).map_err(error)?;
    Ok(ServiceFrontends { service, frontends })
}

fn row(object: &slim::Service, rules: &Rules) -> Result<Service, Fault> {
    let (meta, spec) = (&object.metadata, &object.spec);
    let mut service = Service::new(ServiceName::new(&meta.namespace, &meta.name), rules.source);
    service.labels = StringMap::from_sorted(meta.labels.iter());
    service.annotations = present(&meta.annotations);
    service.selector = present(&spec.selector);
    service.ext_traffic_policy = traffic_policy(&spec.external_traffic_policy);
    service.int_traffic_policy = traffic_policy(&spec.internal_traffic_policy);
    if let Some(text) = unknown_affinity(&service.annotations) {
        tracing::warn!(service = %service.name, annotation = AFFINITY, value = text,
            "Unknown affinity, using backends of all clusters equally");
    }
    if rules.forwarding_mode_annotation {
        service.forwarding_mode = forwarding_mode(&service);
    }
    if spec.session_affinity == slim::SessionAffinity::ClientIp {
        let config = spec
            .session_affinity_config
            .as_ref()
            .and_then(|config| config.client_ip.as_ref());
        let seconds = config
            .and_then(|client| client.timeout_seconds)
            .and_then(|s| u64::try_from(s).ok());
        service.session_affinity = true;
        service.session_affinity_timeout = match seconds {
            None | Some(0) => DEFAULT_AFFINITY_TIMEOUT,
            Some(seconds) => Duration::from_secs(seconds),
        };
    }
    service.load_balancer_class = spec.load_balancer_class.as_deref().map(Arc::from);
    service.health_check_node_port = match spec.health_check_node_port {
        0 => 0,
        number => port("healthCheckNodePort", number)?,
    };
    service.source_ranges = source_ranges(&service.name, &spec.load_balancer_source_ranges);
    service.port_names = Some(port_names(&spec.ports)?);
    service.traffic_distribution = traffic_distribution(object, service.int_traffic_policy);
    Ok(service)
}

/// A map that is absent when empty, as decoders leave it.
fn present(labels: &slim::Labels) -> StringMap {
    if labels.is_empty() {
        StringMap::ABSENT
    } else {
        StringMap::from_sorted(labels.iter())
    }
}

fn traffic_policy(policy: &slim::TrafficPolicy) -> TrafficPolicy {
    match policy {
        slim::TrafficPolicy::Local => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    }
}

fn forwarding_mode(service: &Service) -> ForwardingMode {
    let Some(text) = service.annotations.get(FORWARDING_MODE) else {
        return ForwardingMode::Unset;
    };
    match text.to_ascii_lowercase().as_str() {
        "dsr" => ForwardingMode::Dsr,
        "snat" | "hybrid" => ForwardingMode::Snat,
        _ => {
            tracing::warn!(service = %service.name, annotation = FORWARDING_MODE, value = text,
                "Unknown forwarding mode, using that of the node");
            ForwardingMode::Unset
        }
    }
}

fn source_ranges(name: &ServiceName, texts: &[slim::Str]) -> Option<Arc<[IpNet]>> {
    let range = |text: &slim::Str| {
        // Kubernetes allows blanks around a range.
        let range = text.trim().parse::<IpNet>().ok();
        if range.is_none() {
            tracing::debug!(service = %name, range = %text, "Skipping invalid source range");
        }
        range.map(|range| range.trunc())
    };
    let ranges: Arc<[IpNet]> = texts.iter().filter_map(range).collect();
    (!ranges.is_empty()).then_some(ranges)
}

fn port_names(ports: &[slim::ServicePort]) -> Result<Arc<[(CompactString, u16)]>, Fault> {
    if let [only] = ports {
        return Ok([(only.name.clone(), port("port", only.port)?)].into());
    }
    let mut names = BTreeMap::new();
    for each in ports {
        names.insert(each.name.clone(), port("port", each.port)?);
    }
    Ok(names.into_iter().collect())
}

/// A preference of the spec, else the one that the annotations ask for. Meaningless if only local backends are used.
fn traffic_distribution(object: &slim::Service, internal: TrafficPolicy) -> TrafficDistribution {
    if internal == TrafficPolicy::Local {
        return TrafficDistribution::Default;
    }
    match object.spec.traffic_distribution.as_deref() {
        Some("PreferSameZone") => return TrafficDistribution::PreferSameZone,
        Some("PreferClose") => return TrafficDistribution::PreferClose,
        Some("PreferSameNode") => return TrafficDistribution::PreferSameNode,
        _ => {}
    }
    let mode = TOPOLOGY
        .iter()
        .find_map(|name| object.metadata.annotations.get(name));
    match mode {
        None | Some("" | "disabled" | "Disabled") => TrafficDistribution::Default,
        Some(_) => TrafficDistribution::PreferSameZone,
    }
}

/// Collects frontends of one service.
struct Collector<'a> {
    rules: &'a Rules,
    /// Both scopes are needed: traffic from inside and outside follows different policies.
    two_scopes: bool,
    frontends: Vec<FrontendParams>,
}

impl Collector<'_> {
    fn add(&mut self, kind: FrontendKind, ip: IpAddr, number: u16, port: &Port<'_>) {
        if !self.rules.allows(ip) {
            return;
        }
        let scoped = self.two_scopes && kind != FrontendKind::ClusterIp;
        let scopes = if scoped {
            &[Scope::External, Scope::Internal][..]
        } else {
            &[Scope::External]
        };
        for &scope in scopes {
            self.frontends.push(FrontendParams {
                address: L3n4Addr::with_scope(ip, number, port.proto, scope),
                kind,
                port_name: port.name.clone(),
                service_port: port.number,
            });
        }
    }
}

/// A checked service port.
struct Port<'a> {
    name: &'a CompactString,
    number: u16,
    proto: L4Proto,
    /// Port on every node; 0 for none.
    node_port: u16,
}

impl<'a> Port<'a> {
    fn new(port: &'a slim::ServicePort) -> Result<Self, Fault> {
        let node_port = match port.node_port {
            0 => 0,
            number => self::port("nodePort", number)?,
        };
        let number = self::port("port", port.port)?;
        Ok(Self {
            name: &port.name,
            number,
            proto: protocol(&port.protocol)?,
            node_port,
        })
    }
}

fn frontends(object: &slim::Service, service: &Service, rules: &Rules) -> Result<Vec<FrontendParams>, Fault> {
    let spec = &object.spec;
    if object.metadata.labels.contains_key(HEADLESS) || spec.cluster_ip.eq_ignore_ascii_case("none") {
        return Ok(Vec::new());
    }
    let ports = spec.ports.iter().map(Port::new);
    let ports = ports.collect::<Result<SmallVec<[_; 4]>, _>>()?;
    let only = restriction(service);
    let wanted = |kind| only.is_none_or(|only| only == kind);
    let two_scopes = service.ext_traffic_policy != service.int_traffic_policy;
    let mut collector = Collector {
        rules,
        two_scopes,
        frontends: Vec::with_capacity(ports.len()),
    };

    let cluster_ips = cluster_ips(spec);
    if wanted(FrontendKind::ClusterIp) {
        for port in &ports {
            for &ip in &cluster_ips {
                collector.add(FrontendKind::ClusterIp, ip, port.number, port);
            }
        }
    }
    let has_node_ports = matches!(
        spec.kind,
        slim::ServiceType::NodePort | slim::ServiceType::LoadBalancer
    );
    if rules.replaces_kube_proxy && has_node_ports && wanted(FrontendKind::NodePort) {
        for port in ports.iter().filter(|port| port.node_port != 0) {
            for ip in surrogates(spec, &cluster_ips) {
                collector.add(FrontendKind::NodePort, ip, port.node_port, port);
            }
        }
    }
    if spec.kind == slim::ServiceType::LoadBalancer && wanted(FrontendKind::LoadBalancer) {
        for ingress in &object.status.load_balancer.ingress {
            let is_vip = matches!(
                ingress.ip_mode,
                slim::IngressIpMode::Unset | slim::IngressIpMode::Vip
            );
            if let Some(ip) = address_of(service, &ingress.ip).filter(|_| is_vip) {
                ports
                    .iter()
                    .for_each(|port| collector.add(FrontendKind::LoadBalancer, ip, port.number, port));
            }
        }
    }
    for text in &spec.external_ips {
        if let Some(ip) = address_of(service, text) {
            ports
                .iter()
                .for_each(|port| collector.add(FrontendKind::ExternalIps, ip, port.number, port));
        }
    }
    Ok(sorted(collector.frontends))
}

/// Sorts by address. Of several frontends with one address, which a strange object may ask for, the last one added
/// stays.
fn sorted(mut frontends: Vec<FrontendParams>) -> Vec<FrontendParams> {
    if frontends.len() > 1 {
        frontends.reverse();
        frontends.sort_by_key(|frontend| frontend.address);
        frontends.dedup_by_key(|frontend| frontend.address);
    }
    frontends
}

/// The only kind of frontends the annotation lets the service have.
fn restriction(service: &Service) -> Option<FrontendKind> {
    match service.annotations.get(TYPE)? {
        "ClusterIP" => Some(FrontendKind::ClusterIp),
        "NodePort" => Some(FrontendKind::NodePort),
        "LoadBalancer" => Some(FrontendKind::LoadBalancer),
        other => {
            tracing::warn!(service = %service.name, annotation = TYPE, value = other,
                "Unknown service type, ignoring annotation");
            None
        }
    }
}

/// Cluster IPs in the order of their texts. Services without one (type ExternalName) have none.
fn cluster_ips(spec: &slim::ServiceSpec) -> SmallVec<[IpAddr; 2]> {
    if spec.cluster_ips.is_empty() {
        return address(&spec.cluster_ip).into_iter().collect();
    }
    let mut texts: SmallVec<[&str; 2]> = spec.cluster_ips.iter().map(CompactString::as_str).collect();
    texts.sort_unstable();
    texts.into_iter().filter_map(address).collect()
}

/// Addresses that stand for all of a node's: of the service's families, or of those of its cluster IPs.
fn surrogates(spec: &slim::ServiceSpec, cluster_ips: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let families = &spec.ip_families;
    let (v4, v6) = if families.is_empty() {
        (
            cluster_ips.iter().any(IpAddr::is_ipv4),
            cluster_ips.iter().any(IpAddr::is_ipv6),
        )
    } else {
        (
            families.contains(&slim::IpFamily::V4),
            families.contains(&slim::IpFamily::V6),
        )
    };
    let v4 = v4.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let v6 = v6.then_some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    v4.into_iter().chain(v6)
}

/// An external address; one that can't be read is left out, the rest of the service works on.
fn address_of(service: &Service, text: &str) -> Option<IpAddr> {
    let ip = address(text);
    if ip.is_none() && !text.is_empty() {
        tracing::warn!(service = %service.name, address = text, "Skipping frontend with invalid address");
    }
    ip
}
