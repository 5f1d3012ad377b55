// SPDX-License-Identifier: Apache-2.0

//! The service: what is common to its frontends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use ipnet::IpNet;

use super::annotation;
use super::{FrontendKind, Names, ServiceName, Source, StringMap};

/// Whether traffic may go to backends on other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Every backend of the cluster.
    #[default]
    Cluster,
    /// Only backends on this node.
    Local,
}

/// How packets for backends on other nodes are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ForwardingMode {
    /// As configured for the node.
    #[default]
    Unset,
    /// Direct server return: the backend answers the client itself.
    Dsr,
    /// Source address translation: answers come back through this node.
    Snat,
}

/// How a backend is picked for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LbAlgorithm {
    /// As configured for the node.
    #[default]
    Unset = 0,
    /// Any backend.
    Random = 1,
    /// Consistent hashing.
    Maglev = 2,
}

/// Translation between address families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NatPolicy {
    /// Nothing said.
    #[default]
    Unset,
    /// No translation.
    None,
    /// IPv4 clients, IPv6 backends.
    Nat46,
    /// IPv6 clients, IPv4 backends.
    Nat64,
}

/// Which backends are preferred by their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TrafficDistribution {
    /// None.
    #[default]
    Default,
    /// Those whose hints name our zone.
    PreferSameZone,
    /// Old name of [`Self::PreferSameZone`].
    PreferClose,
    /// Those on our node.
    PreferSameNode,
}

/// Traffic of some ports of a service goes to a proxy on this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxyRedirect {
    /// Port the proxy listens on.
    pub proxy_port: u16,
    /// Service ports it takes; empty: all.
    pub ports: Arc<[u16]>,
}

/// Whether source ranges name the clients that may connect, or those that may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SourceRangesPolicy {
    /// Only listed clients may connect.
    #[default]
    Allow,
    /// Listed clients may not connect.
    Deny,
}

/// A service. Rows of table `services`; immutable once inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Unique name.
    pub name: ServiceName,
    /// Who described it.
    pub source: Source,
    /// Labels of the Kubernetes object, without source prefix; dumps show them with [`Self::label_source`].
    pub labels: StringMap,
    /// Annotations of the Kubernetes object.
    pub annotations: StringMap,
    /// Pod selector.
    pub selector: StringMap,
    /// Translation between families.
    pub nat_policy: NatPolicy,
    /// Policy for traffic from outside.
    pub ext_traffic_policy: TrafficPolicy,
    /// Policy for traffic from inside.
    pub int_traffic_policy: TrafficPolicy,
    /// Forwarding mode asked for by annotation.
    pub forwarding_mode: ForwardingMode,
    /// Whether a client stays with its backend.
    pub session_affinity: bool,
    /// For how long after its last connection.
    pub session_affinity_timeout: Duration,
    /// Load balancer class, if one is named.
    pub load_balancer_class: Option<Arc<str>>,
    /// Redirects to proxies on this node, in order of precedence.
    pub proxy_redirects: Option<Arc<[ProxyRedirect]>>,
    /// Port of the health server for external load balancers; 0: none.
    pub health_check_node_port: u16,
    /// Whether a host port is bound to a loopback address.
    pub loopback_host_port: bool,
    /// Client networks that are allowed or denied.
    pub source_ranges: Option<Arc<[IpNet]>>,
    /// Service port of each port name, sorted by name; `None` when absent.
    pub port_names: Option<Arc<[(CompactString, u16)]>>,
    /// Preference by place.
    pub traffic_distribution: TrafficDistribution,
}

impl Default for ServiceName {
    /// The empty name, which no service has.
    fn default() -> Self {
        Self::new("", "")
    }
}

impl Default for Service {
    /// A service without a name.
    fn default() -> Self {
        Self::new(ServiceName::default(), Source::default())
    }
}

impl Service {
    /// A service with a name and a source, and nothing else.
    pub const fn new(name: ServiceName, source: Source) -> Self {
        Self {
            name,
            source,
            labels: StringMap::ABSENT,
            annotations: StringMap::ABSENT,
            selector: StringMap::ABSENT,
            nat_policy: NatPolicy::Unset,
            ext_traffic_policy: TrafficPolicy::Cluster,
            int_traffic_policy: TrafficPolicy::Cluster,
            forwarding_mode: ForwardingMode::Unset,
            session_affinity: false,
            session_affinity_timeout: Duration::ZERO,
            load_balancer_class: None,
            proxy_redirects: None,
            health_check_node_port: 0,
            loopback_host_port: false,
            source_ranges: None,
            port_names: None,
            traffic_distribution: TrafficDistribution::Default,
        }
    }

    /// Source prefix of [`Self::labels`] in dumps.
    pub const fn label_source(&self) -> &'static str {
        self.source.as_str()
    }

    /// The redirect that takes the given service port: the first one naming it, else the first without ports.
    pub fn proxy_redirect(&self, service_port: u16) -> Option<&ProxyRedirect> {
        let redirects = self.proxy_redirects.as_deref().unwrap_or_default();
        redirects
            .iter()
            .find(|redirect| redirect.ports.contains(&service_port))
            .or_else(|| redirects.iter().find(|redirect| redirect.ports.is_empty()))
    }

    /// Algorithm asked for by annotation `service.cilium.io/lb-algorithm`.
    pub fn explicit_algorithm(&self) -> LbAlgorithm {
        match self.annotations.get(annotation::LB_ALGORITHM) {
            Some("random") => LbAlgorithm::Random,
            Some("maglev") => LbAlgorithm::Maglev,
            _ => LbAlgorithm::Unset,
        }
    }

    /// Meaning of the source ranges, by annotation `service.cilium.io/src-ranges-policy`.
    pub fn source_ranges_policy(&self) -> SourceRangesPolicy {
        match self.annotations.get(annotation::SRC_RANGES_POLICY) {
            Some(text) if text.eq_ignore_ascii_case("deny") => SourceRangesPolicy::Deny,
            _ => SourceRangesPolicy::Allow,
        }
    }

    /// Whether packets go unchanged to a proxy on this node if it is the chosen backend, by annotation
    /// `service.cilium.io/proxy-delegation`.
    pub fn delegates_if_local(&self) -> bool {
        self.annotations
            .get(annotation::PROXY_DELEGATION)
            .is_some_and(|text| text.eq_ignore_ascii_case("delegate-if-local"))
    }

    /// Whether a frontend of the given kind has an external and an internal entry.
    pub fn has_two_scopes(&self, kind: FrontendKind) -> bool {
        self.ext_traffic_policy != self.int_traffic_policy && kind != FrontendKind::ClusterIp
    }

    /// Whether backends are preferred by zone.
    pub fn prefers_zone(&self) -> bool {
        matches!(
            self.traffic_distribution,
            TrafficDistribution::PreferSameZone | TrafficDistribution::PreferClose
        )
    }

    /// Service port of a port name.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.port_names
            .as_deref()?
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, port)| *port)
    }
}

/// Place of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BackendZone {
    /// Zone it is in.
    pub zone: CompactString,
    /// Zones it should serve (topology hints).
    pub for_zones: Names,
}

macro_rules! texts {
    ($ty:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        impl $ty {
            /// Text in tables and dumps.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
            /// The value with the given text (exact case).
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)* _ => None }
            }
        }
        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

texts!(TrafficPolicy { Cluster = "Cluster", Local = "Local" });
texts!(ForwardingMode { Unset = "", Dsr = "dsr", Snat = "snat" });
texts!(LbAlgorithm { Unset = "undef", Random = "random", Maglev = "maglev" });
texts!(NatPolicy { Unset = "", None = "NONE", Nat46 = "Nat46", Nat64 = "Nat64" });
texts!(SourceRangesPolicy { Allow = "allow", Deny = "deny" });
texts!(TrafficDistribution {
    Default = "",
    PreferSameZone = "PreferSameZone",
    PreferClose = "PreferClose",
    PreferSameNode = "PreferSameNode",
});
