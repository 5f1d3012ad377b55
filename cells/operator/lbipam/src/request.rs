// SPDX-License-Identifier: Apache-2.0

//! What a Service asks of LB-IPAM.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{
    IpFamily, Labels, Metadata, Protocol, ServiceSpec, ServiceType, Str, TrafficPolicy,
};

use crate::address::Family;
use crate::config::Families;
use skep_base_settings::DefaultIpam;

/// Annotations with their older names, which are read if the newer one is absent.
const IPS: [&str; 2] = ["lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"];
const SHARING_KEY: [&str; 2] = ["lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"];
const SHARING_NAMESPACES: [&str; 2] = [
    "lbipam.cilium.io/sharing-cross-namespace",
    "io.cilium/lb-ipam-sharing-cross-namespace",
];

/// Classes of load balancers that announce addresses of LB-IPAM.
const CLASSES: [&str; 2] = ["io.cilium/bgp-control-plane", "io.cilium/l2-announcer"];

/// Labels that selectors of pools see, besides those of the service.
const NAMESPACE_LABEL: &str = "io.kubernetes.service.namespace";
const NAME_LABEL: &str = "io.kubernetes.service.name";

fn annotation<'a>(metadata: &'a Metadata, names: [&str; 2]) -> Option<&'a str> {
    let mut values = names
        .into_iter()
        .filter_map(|name| metadata.annotations.get(name));
    values.find(|value| !value.trim().is_empty())
}

/// Whether LB-IPAM is responsible for a service.
pub fn is_responsible(spec: &ServiceSpec, default: DefaultIpam) -> bool {
    spec.kind == ServiceType::LoadBalancer
        && match spec.load_balancer_class.as_deref() {
            None | Some("") => default == DefaultIpam::LbIpam,
            Some(class) => CLASSES.contains(&class),
        }
}

/// The addresses that a service wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Addresses(Vec<IpAddr>),
    Families(Vec<Family>),
}

/// Services with this key may share an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    pub key: Str,
    /// Other namespaces whose services may share; `*` for all.
    pub namespaces: BTreeSet<Str>,
}

/// What a service asks for, and all that decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub service: ObjectKey,
    /// When it was created: older services are served first.
    pub created: Option<Timestamp>,
    /// Its labels, with namespace and name.
    pub labels: Labels,
    pub wanted: Wanted,
    pub sharing: Option<Sharing>,
    pub ports: BTreeSet<(Protocol, i32)>,
    /// Whether only local backends get traffic from outside.
    pub is_local: bool,
    pub selector: Labels,
    /// It is being deleted: it keeps what it has and gets nothing more.
    pub is_ending: bool,
}

/// Why two services cannot share an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// At least one of them has no key, or their keys differ.
    #[error("different sharing key")]
    Key,
    /// A namespace is not in the other's list.
    #[error("different and not permitted namespace")]
    Namespace,
    /// They have a port in common.
    #[error("same port and protocol")]
    Port,
    /// Only one of them is for local backends.
    #[error("different ExternalTrafficPolicy")]
    Policy,
    /// Both are for local backends, which must be the same ones.
    #[error("compatible ExternalTrafficPolicy local but selecting different set of pods")]
    Selector,
}

impl Request {
    /// Reads a service. The second part is what its annotations request and is no address: it is ignored.
    pub fn new(
        metadata: &Metadata,
        created: Option<Timestamp>,
        spec: &ServiceSpec,
        families: Families,
    ) -> (Self, Vec<String>) {
        let (requested, invalid) = requested_addresses(metadata, spec);
        let wanted = if requested.is_empty() {
            Wanted::Families(wanted_families(spec, families))
        } else {
            Wanted::Addresses(requested)
        };
        let sharing = annotation(metadata, SHARING_KEY).map(|key| Sharing {
            key: Str::new(key),
            namespaces: annotation(metadata, SHARING_NAMESPACES)
                .into_iter()
                .flat_map(|list| list.split(','))
                .map(|namespace| Str::new(namespace.trim()))
                .collect(),
        });
        let labels = metadata.labels.iter().chain([
            (NAMESPACE_LABEL, metadata.namespace.as_str()),
            (NAME_LABEL, metadata.name.as_str()),
        ]);
        let port = |port: &skep_k8s_types::slim::ServicePort| {
            let protocol = match &port.protocol {
                Protocol::Unset => Protocol::Tcp,
                protocol => protocol.clone(),
            };
            (protocol, port.port)
        };
        let request = Self {
            service: ObjectKey {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
            },
            created,
            labels: Labels::from_iter(labels),
            wanted,
            sharing,
            ports: spec.ports.iter().map(port).collect(),
            is_local: spec.external_traffic_policy == TrafficPolicy::Local,
            selector: spec.selector.clone(),
            is_ending: metadata.deletion_timestamp.is_some(),
        };
        (request, invalid)
    }

    /// Whether two services may have the same address.
    ///
    /// # Errors
    ///
    /// [`Incompatible`]: the first rule that they break.
    pub fn may_share(&self, other: &Self) -> Result<(), Incompatible> {
        let (Some(own), Some(others)) = (&self.sharing, &other.sharing) else {
            return Err(Incompatible::Key);
        };
        let permits = |sharing: &Sharing, namespace: &Str| {
            sharing.namespaces.contains(namespace) || sharing.namespaces.contains("*")
        };
        let (namespace, others_namespace) = (&self.service.namespace, &other.service.namespace);
        if own.key != others.key {
            Err(Incompatible::Key)
        } else if namespace != others_namespace
            && !(permits(own, others_namespace) && permits(others, namespace))
        {
            Err(Incompatible::Namespace)
        } else if !self.ports.is_disjoint(&other.ports) {
            Err(Incompatible::Port)
        } else if self.is_local != other.is_local {
            Err(Incompatible::Policy)
        } else if self.is_local && (self.selector.is_empty() || self.selector != other.selector) {
            Err(Incompatible::Selector)
        } else {
            Ok(())
        }
    }
}

/// The addresses that the specification and the annotation ask for, and what is no address.
fn requested_addresses(metadata: &Metadata, spec: &ServiceSpec) -> (Vec<IpAddr>, Vec<String>) {
    let field = Some(spec.load_balancer_ip.as_str()).filter(|text| !text.trim().is_empty());
    let list = annotation(metadata, IPS)
        .into_iter()
        .flat_map(|list| list.split(','));
    let (mut addresses, mut invalid) = (Vec::new(), Vec::new());
    for text in field.into_iter().chain(list).map(str::trim) {
        match text.parse::<IpAddr>() {
            Ok(address) => {
                let address = address.to_canonical();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            Err(_) => invalid.push(text.to_owned()),
        }
    }
    (addresses, invalid)
}

fn wanted_families(spec: &ServiceSpec, enabled: Families) -> Vec<Family> {
    let mut listed = Vec::new();
    for family in &spec.ip_families {
        let family = match family {
            IpFamily::V4 => Family::V4,
            IpFamily::V6 => Family::V6,
            IpFamily::Unset | IpFamily::Other(_) => continue,
        };
        if !listed.contains(&family) {
            listed.push(family);
        }
    }
    match spec.ip_family_policy.as_deref() {
        Some("PreferDualStack") => listed.retain(|family| enabled.has(*family)),
        Some("RequireDualStack") => {
            listed.retain(|family| enabled.has(*family));
            for family in enabled.all() {
                if !listed.contains(&family) {
                    listed.push(family);
                }
            }
        }
        _ if listed.is_empty() => listed.extend(enabled.all().next()),
        _ => listed.truncate(1),
    }
    listed
}
