// SPDX-License-Identifier: Apache-2.0

//! What an endpoint has of its pod.

use skep_ipcache::PodMetadata;
use skep_k8s_types::slim::{self, Pod, Str};

/// A pod, as far as its endpoint has to do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointPod {
    pub uid: Str,
    pub labels: slim::Labels,
    pub service_account: Str,
    /// Named ports of its containers, sorted by name.
    pub named_ports: Box<[NamedPort]>,
    pub bandwidth: BandwidthAnnotations,
}

/// Annotations that limit what a pod sends and receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BandwidthAnnotations {
    /// `kubernetes.io/egress-bandwidth`: bits a second, as a quantity.
    pub egress: Option<Str>,
    /// `kubernetes.io/ingress-bandwidth`
    pub ingress: Option<Str>,
    /// `bandwidth.cilium.io/priority`
    pub priority: Option<Str>,
}

impl From<&slim::Labels> for BandwidthAnnotations {
    fn from(annotations: &slim::Labels) -> Self {
        let text = |key| annotations.get(key).map(Str::from);
        Self {
            egress: text("kubernetes.io/egress-bandwidth"),
            ingress: text("kubernetes.io/ingress-bandwidth"),
            priority: text("bandwidth.cilium.io/priority"),
        }
    }
}

/// A named port of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    /// In lower case.
    pub name: Str,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Str,
    pub port: u16,
}

impl From<&Pod> for EndpointPod {
    fn from(pod: &Pod) -> Self {
        let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
        let named = ports.filter(|port| !port.name.is_empty()).filter_map(|port| {
            let protocol = Str::from(port.protocol.to_string().to_uppercase());
            Some(NamedPort {
                name: port.name.to_lowercase(),
                protocol: match protocol.is_empty() {
                    true => Str::const_new("TCP"),
                    false => protocol,
                },
                port: u16::try_from(port.container_port).ok().filter(|port| *port > 0)?,
            })
        });
        let mut named_ports: Vec<NamedPort> = named.collect();
        // Names are unique; of two ports with one name the last counts.
        named_ports.reverse();
        named_ports.sort_by(|one, other| one.name.cmp(&other.name));
        named_ports.dedup_by(|one, other| one.name == other.name);
        Self {
            uid: pod.metadata.uid.clone(),
            labels: pod.metadata.labels.clone(),
            service_account: pod.spec.service_account_name.clone(),
            named_ports: named_ports.into(),
            bandwidth: BandwidthAnnotations::from(&pod.metadata.annotations),
        }
    }
}

impl EndpointPod {
    /// Named ports as the ipcache has them.
    pub(crate) fn ipcache_ports(&self) -> Box<[(Str, u8, u16)]> {
        let ports = self.named_ports.iter();
        let known = ports.filter_map(|port| {
            let protocol = PodMetadata::protocol(&port.protocol)?;
            Some((port.name.clone(), protocol, port.port))
        });
        known.collect()
    }
}
