// SPDX-License-Identifier: Apache-2.0

//! What policies mean, as their documentation says it: packet by packet, without maps, levels or precedences.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    Host,
    World,
    /// 10.0.0.0/8, but for the next one.
    Wide,
    /// 10.1.0.0/16
    Narrow,
    Pod {
        app: u8,
        namespace: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ingress,
    Egress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Admin,
    Normal,
    Baseline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Deny,
    Pass,
}

/// Peers of a rule. Pods by app are those of namespace 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerRule {
    Any,
    App(u8),
    NotApp(u8),
    Namespace(u8),
    World,
    Wide,
    Narrow,
}

impl PeerRule {
    fn is_about(self, peer: Peer) -> bool {
        match (self, peer) {
            (Self::Any, _) => true,
            (Self::App(wanted), Peer::Pod { app, namespace: 0 }) => app == wanted,
            (Self::NotApp(other), Peer::Pod { app, namespace: 0 }) => app != other,
            (Self::Namespace(wanted), Peer::Pod { namespace, .. }) => namespace == wanted,
            (Self::World, Peer::World | Peer::Wide | Peer::Narrow) => true,
            (Self::Wide, Peer::Wide | Peer::Narrow) => true,
            (Self::Narrow, Peer::Narrow) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortRule {
    All,
    AllTcp,
    Tcp(u16),
    Range(u16, u16),
    Udp(u16),
    AnyProtocol(u16),
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

impl PortRule {
    fn is_about(self, protocol: u8, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::AllTcp => protocol == TCP,
            Self::Tcp(wanted) => protocol == TCP && port == wanted,
            Self::Range(start, end) => protocol == TCP && (start..=end).contains(&port),
            Self::Udp(wanted) => protocol == UDP && port == wanted,
            Self::AnyProtocol(wanted) => [TCP, UDP, SCTP].contains(&protocol) && port == wanted,
        }
    }
}

/// One rule, which is an object of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub tier: Tier,
    pub direction: Direction,
    pub verdict: Verdict,
    pub peers: PeerRule,
    pub ports: PortRule,
    pub http: bool,
    pub default_deny: bool,
    pub priority: u8,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            tier: Tier::Normal,
            direction: Direction::Ingress,
            verdict: Verdict::Allow,
            peers: PeerRule::App(1),
            ports: PortRule::Tcp(80),
            http: false,
            default_deny: true,
            priority: 0,
        }
    }
}

impl Rule {
    /// The nearest rule that an object can say.
    pub(crate) fn possible(mut self) -> Self {
        if self.tier == Tier::Normal {
            self.priority = 0;
            if self.verdict == Verdict::Pass {
                self.verdict = Verdict::Allow;
            }
            let has_tcp_ports = matches!(self.ports, PortRule::Tcp(_) | PortRule::Range(..));
            self.http &= self.verdict == Verdict::Allow && has_tcp_ports;
            return self;
        }
        self.http = false;
        self.default_deny = false;
        if let PortRule::AnyProtocol(port) = self.ports {
            self.ports = PortRule::Udp(port);
        }
        let is_network = matches!(self.peers, PeerRule::World | PeerRule::Wide | PeerRule::Narrow);
        if is_network && self.direction == Direction::Ingress {
            self.peers = PeerRule::Any;
        }
        self
    }

    pub(crate) fn to_object(self, number: usize) -> Value {
        match self.tier {
            Tier::Normal => self.to_cilium(number),
            _ => self.to_cluster(number),
        }
    }

    fn to_cilium(self, number: usize) -> Value {
        let (from, list) = match (self.direction, self.verdict) {
            (Direction::Ingress, Verdict::Deny) => ("from", "ingressDeny"),
            (Direction::Ingress, _) => ("from", "ingress"),
            (Direction::Egress, Verdict::Deny) => ("to", "egressDeny"),
            (Direction::Egress, _) => ("to", "egress"),
        };
        let peers = match self.peers {
            PeerRule::Any => json!({ format!("{from}Entities"): ["all"] }),
            PeerRule::App(app) => {
                json!({ format!("{from}Endpoints"): [{ "matchLabels": { "app": format!("a{app}") } }] })
            }
            PeerRule::NotApp(app) => json!({ format!("{from}Endpoints"): [{ "matchExpressions": [
                { "key": "app", "operator": "NotIn", "values": [format!("a{app}")] },
            ] }] }),
            PeerRule::Namespace(namespace) => json!({ format!("{from}Endpoints"): [{ "matchLabels": {
                "k8s:io.kubernetes.pod.namespace": format!("n{namespace}"),
            } }] }),
            PeerRule::World => json!({ format!("{from}Entities"): ["world"] }),
            PeerRule::Wide => json!({ format!("{from}CIDR"): ["10.0.0.0/8"] }),
            PeerRule::Narrow => json!({ format!("{from}CIDRSet"): [{ "cidr": "10.1.0.0/16" }] }),
        };
        let port = match self.ports {
            PortRule::All => Value::Null,
            PortRule::AllTcp => json!({ "port": "0", "protocol": "TCP" }),
            PortRule::Tcp(port) => json!({ "port": port.to_string(), "protocol": "TCP" }),
            PortRule::Range(start, end) => {
                json!({ "port": start.to_string(), "endPort": end, "protocol": "TCP" })
            }
            PortRule::Udp(port) => json!({ "port": port.to_string(), "protocol": "UDP" }),
            PortRule::AnyProtocol(port) => json!({ "port": port.to_string(), "protocol": "ANY" }),
        };
        let mut rule = peers;
        if !port.is_null() {
            rule["toPorts"] = json!([{ "ports": [port] }]);
        }
        if self.http {
            rule["toPorts"][0]["rules"] = json!({ "http": [{ "path": "/" }] });
        }
        let direction = if self.direction == Direction::Ingress {
            "ingress"
        } else {
            "egress"
        };
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": { "name": format!("p{number}"), "namespace": "n0" },
            "spec": {
                "endpointSelector": { "matchLabels": { "app": "a0" } },
                "enableDefaultDeny": { direction: self.default_deny },
                list: [rule],
            },
        })
    }

    fn to_cluster(self, number: usize) -> Value {
        let name = |namespace: u8| json!({ "matchLabels": { "name": format!("n{namespace}") } });
        let peers = match self.peers {
            PeerRule::Any => json!([]),
            PeerRule::App(app) => json!([{ "pods": {
                "namespaceSelector": name(0), "podSelector": { "matchLabels": { "app": format!("a{app}") } },
            } }]),
            PeerRule::NotApp(app) => {
                json!([{ "pods": { "namespaceSelector": name(0), "podSelector": { "matchExpressions": [
                { "key": "app", "operator": "NotIn", "values": [format!("a{app}")] },
            ] } } }])
            }
            PeerRule::Namespace(namespace) => json!([{ "namespaces": name(namespace) }]),
            PeerRule::World => json!([{ "networks": ["0.0.0.0/0"] }]),
            PeerRule::Wide => json!([{ "networks": ["10.0.0.0/8"] }]),
            PeerRule::Narrow => json!([{ "networks": ["10.1.0.0/16"] }]),
        };
        let protocols = match self.ports {
            PortRule::All | PortRule::AnyProtocol(_) => Value::Null,
            PortRule::AllTcp => json!([{ "tcp": {} }]),
            PortRule::Tcp(port) => json!([{ "tcp": { "destinationPort": { "number": port } } }]),
            PortRule::Range(start, end) => {
                json!([{ "tcp": { "destinationPort": { "range": { "start": start, "end": end } } } }])
            }
            PortRule::Udp(port) => json!([{ "udp": { "destinationPort": { "number": port } } }]),
        };
        let action = match self.verdict {
            Verdict::Allow => "Accept",
            Verdict::Deny => "Deny",
            Verdict::Pass => "Pass",
        };
        let (list, from) = match self.direction {
            Direction::Ingress => ("ingress", "from"),
            Direction::Egress => ("egress", "to"),
        };
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": { "name": format!("p{number}") },
            "spec": {
                "tier": if self.tier == Tier::Admin { "Admin" } else { "Baseline" },
                "priority": self.priority,
                "subject": { "namespaces": name(0) },
                list: [{ "action": action, from: peers, "protocols": protocols }],
            },
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub direction: Direction,
    pub peer: Peer,
    pub protocol: u8,
    pub port: u16,
}

/// Rules that select the subject.
pub(crate) struct World<'a> {
    pub rules: &'a [Rule],
}

impl World<'_> {
    /// `allow`, `redirect` or `drop`.
    pub(crate) fn decide(&self, packet: &Packet) -> &'static str {
        let of_direction = || {
            self.rules
                .iter()
                .filter(|rule| rule.direction == packet.direction)
        };
        let matching = |tier: Tier| {
            let rules = of_direction().filter(move |rule| rule.tier == tier);
            rules.filter(|rule| {
                rule.peers.is_about(packet.peer) && rule.ports.is_about(packet.protocol, packet.port)
            })
        };
        let is_isolated = of_direction().any(|rule| rule.default_deny);
        for tier in [Tier::Admin, Tier::Normal, Tier::Baseline] {
            // The first priority with a rule about the packet decides; a pass goes on with the next tier.
            let Some(first) = matching(tier).map(|rule| rule.priority).min() else {
                continue;
            };
            let decides = || matching(tier).filter(|rule| rule.priority == first);
            if decides().any(|rule| rule.verdict == Verdict::Deny) {
                return "drop";
            }
            if tier == Tier::Baseline && is_isolated {
                break;
            }
            let mut allows = decides().filter(|rule| rule.verdict == Verdict::Allow).peekable();
            if allows.peek().is_some() {
                return if allows.any(|rule| rule.http) {
                    "redirect"
                } else {
                    "allow"
                };
            }
        }
        let is_local = packet.peer == Peer::Host && packet.direction == Direction::Ingress;
        match is_isolated && !is_local {
            true => "drop",
            false => "allow",
        }
    }
}
