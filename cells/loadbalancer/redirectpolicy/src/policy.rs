// SPDX-License-Identifier: Apache-2.0

//! A local redirect policy: the custom resource, checked.

use std::fmt;
use std::net::IpAddr;

use compact_str::CompactString;
use ipnet::IpNet;
use skep_k8s_types::selector::{Selector, SelectorError};
use skep_k8s_types::slim::{self, CiliumLocalRedirectPolicy, PortInfo};
use skep_loadbalancer_model::{L3n4Addr, L4Proto, ServiceName};

/// Which traffic a policy redirects, and how ports are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrontendType {
    ServiceAll,
    ServiceSinglePort,
    /// Some ports of a service, matched to backend ports by name.
    ServiceNamedPorts,
    AddressSinglePort,
    /// Some ports of an address, matched to backend ports by name.
    AddressNamedPorts,
}

impl FrontendType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAll => "all",
            Self::ServiceSinglePort => "svc-single-port",
            Self::ServiceNamedPorts => "named-ports",
            Self::AddressSinglePort => "addr-single-port",
            Self::AddressNamedPorts => "addr-named-ports",
        }
    }

    pub const fn description(self) -> &'static str {
        match self {
            Self::ServiceAll => "clusterIP + all svc ports",
            Self::ServiceSinglePort => "clusterIP + port",
            Self::ServiceNamedPorts => "clusterIP + named ports",
            Self::AddressSinglePort => "IP + port",
            Self::AddressNamedPorts => "IP + named ports",
        }
    }

    /// Whether names decide which backend port serves a frontend.
    const fn by_name(self) -> bool {
        matches!(self, Self::ServiceNamedPorts | Self::AddressNamedPorts)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    pub number: u16,
    pub proto: L4Proto,
    /// Name in lower case; may be empty if nothing is matched by name.
    pub name: CompactString,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Traffic to an address; at least one port.
    Address(IpAddr),
    /// Traffic to the cluster IPs of a service; no ports means all.
    Service(ServiceName),
}

/// A checked policy. Row of table `localredirectpolicies`; immutable once inserted.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Namespace and name of the resource.
    pub name: ServiceName,
    pub uid: CompactString,
    pub target: Target,
    pub frontend_type: FrontendType,
    pub frontend_ports: Box<[Port]>,
    /// Pods of the policy's namespace that take the traffic.
    pub selector: Selector,
    pub backend_ports: Box<[Port]>,
    /// Whether traffic of those pods themselves is left alone.
    pub skips_own_traffic: bool,
}

/// Why a policy has no effect. Fix the resource: its spec is immutable, so delete and create it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The resource has no name or namespace.
    #[error("name or namespace is missing")]
    Nameless,
    /// `redirectFrontend` needs exactly one matcher.
    #[error("redirectFrontend must have either an addressMatcher or a serviceMatcher")]
    Matchers,
    #[error("redirectFrontend.addressMatcher.ip: `{0}` is not an IP address")]
    Address(CompactString),
    /// The node's settings don't allow the address.
    #[error("redirectFrontend.addressMatcher.ip: {0} is outside of lrp-address-matcher-cidrs")]
    AddressNotAllowed(IpAddr),
    /// A list that needs an entry is empty.
    #[error("{0} is empty")]
    Empty(&'static str),
    #[error("redirectFrontend.serviceMatcher.serviceName is missing")]
    NoService,
    #[error("redirectFrontend.serviceMatcher.namespace: `{0}` is not the namespace of the policy")]
    ForeignService(CompactString),
    /// A port number that is none.
    #[error("{list}: `{text}` is not a port number")]
    PortNumber { list: &'static str, text: CompactString },
    /// A protocol that can't be redirected.
    #[error("{list}: unknown protocol `{text}`")]
    Protocol { list: &'static str, text: CompactString },
    /// A port without a name, or with one that is no IANA service name (RFC 6335 5.1), among several ports.
    #[error("{list}: port {port} needs a service name, got `{name}`")]
    PortName {
        list: &'static str,
        port: u16,
        name: CompactString,
    },
    /// The one frontend port and the first backend port speak different protocols.
    #[error("protocols of frontend ({frontend}) and backend ({backend}) differ")]
    ProtocolMismatch { frontend: L4Proto, backend: L4Proto },
    /// The pod selector can't be read.
    #[error("redirectBackend.localEndpointSelector")]
    Selector(#[source] SelectorError),
}

const ADDRESS_PORTS: &str = "redirectFrontend.addressMatcher.toPorts";
const SERVICE_PORTS: &str = "redirectFrontend.serviceMatcher.toPorts";
const BACKEND_PORTS: &str = "redirectBackend.toPorts";

impl Policy {
    /// Checks a resource. `allowed` are the networks addresses may be in; empty allows all.
    pub fn new(resource: &CiliumLocalRedirectPolicy, allowed: &[IpNet]) -> Result<Self, PolicyError> {
        let (meta, spec) = (&resource.metadata, &resource.spec);
        if meta.name.is_empty() || meta.namespace.is_empty() {
            return Err(PolicyError::Nameless);
        }
        let frontend = &spec.redirect_frontend;
        let (target, frontend_type, frontend_ports) =
            match (&frontend.address_matcher, &frontend.service_matcher) {
                (Some(matcher), None) => address(matcher, allowed)?,
                (None, Some(matcher)) => service(matcher, &meta.namespace)?,
                _ => return Err(PolicyError::Matchers),
            };
        let backend = &spec.redirect_backend;
        let by_name = frontend_ports.len() > 1 || backend.to_ports.len() > 1;
        let backend_ports = ports(BACKEND_PORTS, &backend.to_ports, by_name)?;
        let Some(first) = backend_ports.first() else {
            return Err(PolicyError::Empty(BACKEND_PORTS));
        };
        if let [only] = &frontend_ports[..]
            && only.proto != first.proto
        {
            return Err(PolicyError::ProtocolMismatch {
                frontend: only.proto,
                backend: first.proto,
            });
        }
        Ok(Self {
            name: ServiceName::new(&meta.namespace, &meta.name),
            uid: meta.uid.clone(),
            target,
            frontend_type,
            frontend_ports,
            selector: (&backend.local_endpoint_selector)
                .try_into()
                .map_err(PolicyError::Selector)?,
            backend_ports,
            skips_own_traffic: spec.skip_redirect_from_backend,
        })
    }

    /// Name of the pseudo-service that holds the policy's backends.
    pub fn redirect_service(&self) -> ServiceName {
        self.name.with_suffix(":local-redirect")
    }

    /// The service whose cluster IPs are redirected, if any.
    pub fn service(&self) -> Option<&ServiceName> {
        match &self.target {
            Target::Service(name) => Some(name),
            Target::Address(_) => None,
        }
    }

    /// Addresses that are redirected, with their port names; none for services.
    pub fn addresses(&self) -> impl Iterator<Item = (L3n4Addr, &CompactString)> {
        let ip = match self.target {
            Target::Address(ip) => Some(ip),
            Target::Service(_) => None,
        };
        let address = |ip| {
            self.frontend_ports
                .iter()
                .map(move |port| (L3n4Addr::new(ip, port.number, port.proto), &port.name))
        };
        ip.into_iter().flat_map(address)
    }

    /// Whether the frontend of the policy's service with this port is redirected.
    pub fn redirects(&self, address: &L3n4Addr, port_name: &str) -> bool {
        let wanted = |port: &Port| port.number == address.port() && port.proto == address.proto();
        let has_port = self.frontend_ports.is_empty() || self.frontend_ports.iter().any(wanted);
        has_port
            && (self.backend_ports.len() <= 1 || self.backend_ports.iter().any(|port| port.name == port_name))
    }

    /// Whether a pod is one that takes the traffic: of the namespace, selected, and ready.
    pub fn selects(&self, pod: &slim::Pod) -> bool {
        pod.metadata.namespace == self.name.namespace()
            && self.selector.matches(&pod.metadata.labels)
            && pod
                .status
                .conditions
                .iter()
                .any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// Ports of a pod that take the traffic, with the name a frontend must have, if names decide.
    pub fn pod_ports(&self, pod: &slim::Pod) -> Vec<(u16, L4Proto, Option<&CompactString>)> {
        let mut found = Vec::new();
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        for offered in containers.flat_map(|container| &container.ports) {
            let proto = match offered.protocol {
                slim::Protocol::Unset | slim::Protocol::Tcp => L4Proto::Tcp,
                slim::Protocol::Udp => L4Proto::Udp,
                slim::Protocol::Sctp => L4Proto::Sctp,
                slim::Protocol::Other(_) => continue,
            };
            let same = |port: &&Port| i32::from(port.number) == offered.container_port && port.proto == proto;
            for port in self.backend_ports.iter().filter(same) {
                if self.frontend_type.by_name() && !offered.name.eq_ignore_ascii_case(&port.name) {
                    continue;
                }
                let named = self.frontend_type.by_name() || self.backend_ports.len() > 1;
                let port = (port.number, proto, named.then_some(&port.name));
                if !found.contains(&port) {
                    found.push(port);
                }
            }
        }
        found
    }
}

type Frontend = (Target, FrontendType, Box<[Port]>);

fn address(matcher: &slim::AddressMatcher, allowed: &[IpNet]) -> Result<Frontend, PolicyError> {
    let ip: IpAddr = matcher
        .ip
        .parse()
        .map_err(|_| PolicyError::Address(matcher.ip.clone()))?;
    let ip = ip.to_canonical();
    if !allowed.is_empty() && !allowed.iter().any(|net| net.contains(&ip)) {
        return Err(PolicyError::AddressNotAllowed(ip));
    }
    let ports = ports(ADDRESS_PORTS, &matcher.to_ports, matcher.to_ports.len() > 1)?;
    let kind = match ports.len() {
        0 => return Err(PolicyError::Empty(ADDRESS_PORTS)),
        1 => FrontendType::AddressSinglePort,
        _ => FrontendType::AddressNamedPorts,
    };
    Ok((Target::Address(ip), kind, ports))
}

fn service(matcher: &slim::ServiceMatcher, namespace: &str) -> Result<Frontend, PolicyError> {
    if matcher.service_name.is_empty() {
        return Err(PolicyError::NoService);
    }
    if matcher.namespace != namespace {
        return Err(PolicyError::ForeignService(matcher.namespace.clone()));
    }
    let ports = ports(SERVICE_PORTS, &matcher.to_ports, matcher.to_ports.len() > 1)?;
    let kind = match ports.len() {
        0 => FrontendType::ServiceAll,
        1 => FrontendType::ServiceSinglePort,
        _ => FrontendType::ServiceNamedPorts,
    };
    Ok((
        Target::Service(ServiceName::new(namespace, &matcher.service_name)),
        kind,
        ports,
    ))
}

fn ports(list: &'static str, ports: &[PortInfo], by_name: bool) -> Result<Box<[Port]>, PolicyError> {
    let port = |port: &PortInfo| {
        let digits = port.port.bytes().all(|byte| byte.is_ascii_digit());
        let number = port
            .port
            .parse()
            .ok()
            .filter(|&number: &u16| digits && number != 0);
        let number = number.ok_or_else(|| PolicyError::PortNumber {
            list,
            text: port.port.clone(),
        })?;
        let proto = match port.protocol.to_ascii_uppercase().as_str() {
            "TCP" => L4Proto::Tcp,
            "UDP" => L4Proto::Udp,
            "SCTP" => L4Proto::Sctp,
            _ => {
                return Err(PolicyError::Protocol {
                    list,
                    text: port.protocol.clone(),
                });
            }
        };
        let name = port.name.to_ascii_lowercase();
        if by_name && !is_service_name(&name) {
            return Err(PolicyError::PortName {
                list,
                port: number,
                name,
            });
        }
        Ok(Port { number, proto, name })
    };
    ports.iter().map(port).collect()
}

/// IANA service name (RFC 6335 5.1), in lower case: 1 to 15 letters, digits and single inner hyphens, a letter at least.
fn is_service_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

impl fmt::Display for FrontendType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
