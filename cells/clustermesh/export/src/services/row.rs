// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-services`.

use std::net::IpAddr;
use std::sync::Arc;

use skep_clustermesh_types::{
    ClientIpConfig, ClusterInfo, ClusterService, ExportPort, Ports, ServiceExport, ServicePort,
    SessionAffinityConfig,
};
use skep_k8s_types::slim::{Labels, Str};
use statedb::{Index, Row};

use crate::objects::{Service, ServicePort as WirePort};
use crate::parts::Parts;

const GLOBAL: [&str; 2] = ["service.cilium.io/global", "io.cilium/global-service"];
const SHARED: [&str; 2] = ["service.cilium.io/shared", "io.cilium/shared-service"];
const HEADLESS: &str = "service.kubernetes.io/headless";

#[derive(Debug, Clone)]
pub(crate) struct ServiceRow {
    /// `<namespace>/<name>`.
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    /// Whether it is global, and its backends are shared.
    pub(crate) is_shared: bool,
    labels: Labels,
    selector: Labels,
    /// Cluster IPs, unless it is headless.
    addresses: Box<[IpAddr]>,
    ports: Ports,
    /// What a ServiceExport of the same name publishes, without what that one adds; `None` if it cannot be exported, or
    /// nothing is.
    pub(crate) export: Option<Arc<ServiceExport>>,
    /// What of it is not published.
    pub(crate) fault: Option<Box<str>>,
}

/// Why a part of a service is not published. Fix the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidService {
    /// A cluster IP is no address.
    #[error("cluster IP `{0}` is not an IP address")]
    Address(Str),
    #[error("invalid port {0}: it must be from 1 to 65535")]
    Port(i32),
}

pub(super) fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn flag(annotations: &Labels, names: [&str; 2]) -> Option<bool> {
    let value = names.iter().find_map(|name| annotations.get(name))?;
    Some(value.eq_ignore_ascii_case("true"))
}

/// Whether a service has no address of its own.
pub(crate) fn is_headless(service: &Service) -> bool {
    service.spec.cluster_ip.as_deref() == Some("None") || service.metadata.labels.contains_key(HEADLESS)
}

fn is_external_name(service: &Service) -> bool {
    service.spec.kind.as_deref() == Some("ExternalName")
}

impl ServiceRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_NAMESPACE: Index<Self, str> =
        Index::new("namespace", |row, keys| keys.add(&row.namespace));

    /// The row of a service; with what exports publish, if this cluster has them.
    pub(crate) fn new(cluster: &ClusterInfo, has_exports: bool, service: &Service) -> Self {
        let mut parts = Parts::default();
        let (metadata, spec) = (&service.metadata, &service.spec);
        let is_global = flag(&metadata.annotations, GLOBAL).unwrap_or_default();
        let is_shared = is_global && flag(&metadata.annotations, SHARED).unwrap_or(true);
        let (mut addresses_of, mut ports_of) = (Vec::new(), Ports::default());
        if !is_headless(service) {
            ports_of = ports(spec.ports.as_deref().unwrap_or_default(), &mut parts);
            addresses_of = addresses(service, &mut parts);
        }
        let is_exportable = has_exports && !is_external_name(service);
        Self {
            name: Str::new(format!("{}/{}", metadata.namespace, metadata.name)),
            namespace: metadata.namespace.clone(),
            is_shared: is_shared && !is_external_name(service),
            labels: metadata.labels.clone(),
            selector: spec.selector.clone().unwrap_or_default(),
            addresses: addresses_of.into(),
            ports: ports_of,
            export: is_exportable.then(|| Arc::new(export(cluster, service))),
            fault: parts.fault(),
        }
    }

    pub(crate) fn value(&self, cluster: &ClusterInfo) -> ClusterService {
        let name = self.name.split_once('/').map_or("", |(_, name)| name);
        let frontends = self.addresses.iter().map(|ip| (*ip, self.ports.clone()));
        ClusterService {
            cluster: cluster.name.to_string(),
            cluster_id: cluster.id,
            namespace: self.namespace.to_string(),
            name: name.to_owned(),
            frontends: frontends.collect(),
            labels: texts(&self.labels),
            selector: texts(&self.selector),
            include_external: true,
            shared: true,
            ..ClusterService::default()
        }
    }
}

impl Row for ServiceRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Shared"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.name.to_string(), self.is_shared.to_string()]
    }
}

fn texts(labels: &Labels) -> std::collections::BTreeMap<String, String> {
    labels
        .iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn ports(ports: &[WirePort], parts: &mut Parts) -> Ports {
    ports
        .iter()
        .filter_map(|port| {
            let number = port_number(port.port).ok_or(InvalidService::Port(port.port));
            let number = parts.take(number)?;
            let name = port.name.clone().unwrap_or_default();
            let protocol = protocol(port.protocol.as_deref());
            Some((
                name,
                ServicePort {
                    protocol,
                    port: number,
                },
            ))
        })
        .collect()
}

/// A protocol; TCP if there is none.
pub(super) fn protocol(protocol: Option<&str>) -> Str {
    match protocol {
        None | Some("") => Str::const_new("TCP"),
        Some(protocol) => Str::new(protocol),
    }
}

fn addresses(service: &Service, parts: &mut Parts) -> Vec<IpAddr> {
    let spec = &service.spec;
    let listed = spec.cluster_ips.as_deref().unwrap_or_default();
    let all = if listed.is_empty() {
        spec.cluster_ip.as_slice()
    } else {
        listed
    };
    all.iter()
        .filter(|ip| !ip.is_empty() && *ip != "None")
        .filter_map(|ip| {
            let parsed = ip.parse().map(|ip: IpAddr| ip.to_canonical());
            parts.take(parsed.map_err(|_| InvalidService::Address(ip.clone())))
        })
        .collect()
}

fn export(cluster: &ClusterInfo, service: &Service) -> ServiceExport {
    let (metadata, spec) = (&service.metadata, &service.spec);
    let is_headless = spec.cluster_ip.as_deref() == Some("None");
    let mut export = ServiceExport::default();
    export.cluster = cluster.name.to_string();
    export.namespace = metadata.namespace.to_string();
    export.name = metadata.name.to_string();
    export.kind = if is_headless { "Headless" } else { "ClusterSetIP" }.to_owned();
    let ports = spec.ports.iter().flatten().map(|port| ExportPort {
        name: port.name.clone().unwrap_or_default().to_string(),
        protocol: protocol(port.protocol.as_deref()).to_string(),
        app_protocol: port.app_protocol.as_ref().map(Str::to_string),
        port: port.port,
    });
    export.ports = Some(ports.collect::<Vec<_>>()).filter(|ports| !ports.is_empty());
    export.session_affinity = match spec.session_affinity.as_deref() {
        None | Some("") => "None".to_owned(),
        Some(affinity) => affinity.to_owned(),
    };
    export.session_affinity_config =
        spec.session_affinity_config
            .as_ref()
            .map(|config| SessionAffinityConfig {
                client_ip: config.client_ip.as_ref().map(|client| ClientIpConfig {
                    timeout_seconds: client.timeout_seconds,
                }),
            });
    let families = spec.ip_families.iter().flatten();
    export.ip_families = families.map(Str::to_string).collect();
    export.internal_traffic_policy = text(spec.internal_traffic_policy.as_ref());
    export.traffic_distribution = text(spec.traffic_distribution.as_ref());
    export
}

fn text(value: Option<&Str>) -> Option<String> {
    value.filter(|value| !value.is_empty()).map(Str::to_string)
}
