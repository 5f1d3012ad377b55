// SPDX-License-Identifier: Apache-2.0

//! Rules: what objects are turned into, one for each element of their lists.

use std::{collections::BTreeSet, fmt, sync::Arc};

use ipnet::IpNet;
use skep_identity::Reserved;

use crate::{
    l7::PortDemands,
    ports::{Ports, Protocol},
    selector::Selector,
};

/// Rules of an earlier tier come first. An index into tables of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tier(pub u8);

impl Tier {
    pub const ADMIN: Self = Self(100);
    pub const NORMAL: Self = Self(200);
    pub const BASELINE: Self = Self(250);
    /// What no object says: defaults of a direction.
    pub const DEFAULT: Self = Self(255);
}

/// Where traffic goes, seen from the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// What a rule says about traffic; of one level the greater wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The rest of the tier is skipped.
    Pass,
    Allow,
    Deny,
}

/// Authentication of peers, with its number in policy maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthType {
    Disabled = 0,
    Required = 1,
    AlwaysFail = 2,
}

impl AuthType {
    /// As rules name it.
    pub fn from_mode(mode: &str) -> Option<Self> {
        Some(match mode {
            "disabled" => Self::Disabled,
            "required" => Self::Required,
            "test-always-fail" => Self::AlwaysFail,
            _ => return None,
        })
    }

    /// As commands show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Required => "spire",
            Self::AlwaysFail => "test-always-fail",
        }
    }
}

/// Kinds of objects that have rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    CiliumClusterwideNetworkPolicy,
    CiliumNetworkPolicy,
    ClusterNetworkPolicy,
    NetworkPolicy,
    /// A file of `static-cnp-path`.
    File,
    CiliumCidrGroup,
}

impl PolicyKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::CiliumClusterwideNetworkPolicy => "CiliumClusterwideNetworkPolicy",
            Self::CiliumNetworkPolicy => "CiliumNetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::File => "file",
            Self::CiliumCidrGroup => "CiliumCIDRGroup",
        }
    }

    /// The first part of the ids of its resources.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::CiliumClusterwideNetworkPolicy => "ccnp",
            Self::CiliumNetworkPolicy => "cnp",
            Self::ClusterNetworkPolicy => "kcnp",
            Self::NetworkPolicy => "netpol",
            Self::File => "file",
            Self::CiliumCidrGroup => "cidrgroup",
        }
    }
}

/// Who brought rules or networks: `cnp/<namespace>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(Arc<str>);

impl ResourceId {
    pub fn new(kind: PolicyKind, namespace: &str, name: &str) -> Self {
        Self(format!("{}/{namespace}/{name}", kind.prefix()).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub selector: Selector,
    /// The host endpoint of nodes with these labels, and no pods.
    pub is_node: bool,
}

/// Ports that a rule is about, and its demands on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub ports: Ports,
    pub protocol: Protocol,
    pub demands: Option<Arc<PortDemands>>,
}

impl Traffic {
    /// Everything.
    pub const ALL: Self = Self {
        ports: Ports::ALL,
        protocol: Protocol::ANY,
        demands: None,
    };
}

/// What a rule is called in flows, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleOrigin {
    /// `None` for defaults.
    pub resource: Option<ResourceId>,
    /// Position in the object, over all its lists.
    pub index: usize,
    /// Field of the object, such as `spec.ingress[0]`; empty for defaults.
    pub field: Box<str>,
    /// Labels, sorted: `source:key=value`.
    pub labels: Arc<[Box<str>]>,
    /// What flows show for it.
    pub log: Option<Arc<str>>,
}

/// `cnp/shop/p: spec.egress[0]`
impl fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resource {
            Some(resource) => write!(f, "{resource}: {}", self.field),
            None => f.write_str("default"),
        }
    }
}

impl RuleOrigin {
    /// Labels of a default.
    pub(crate) fn default_rule(name: &str) -> Arc<Self> {
        Arc::new(Self {
            resource: None,
            index: 0,
            field: Box::default(),
            labels: [format!("reserved:io.cilium.policy.derived-from={name}").into()].into(),
            log: None,
        })
    }
}

/// One element of the lists of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub tier: Tier,
    /// Lower comes first.
    pub priority: f64,
    pub subject: Subject,
    pub direction: Direction,
    /// Selectors of peers; without one the rule matches no peer.
    pub peers: Vec<Selector>,
    /// Peers as the object lists them, if [`Self::peers`] are sorted or stand for an absent list.
    pub listed: Option<Box<[Selector]>>,
    pub traffic: Vec<Traffic>,
    pub verdict: Verdict,
    /// Other traffic of the direction is denied.
    pub default_deny: bool,
    pub auth: Option<AuthType>,
    pub origin: Arc<RuleOrigin>,
}

/// The rules of an object, and the networks that they name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    pub rules: Vec<Arc<Rule>>,
    /// Networks that need identities, excepted ones too.
    pub networks: BTreeSet<IpNet>,
    /// Warnings about the object, which is applied all the same.
    pub warnings: Vec<String>,
}

/// Peers that an entity stands for.
pub(crate) fn entity_selectors(name: &str, cluster: &str) -> Option<Vec<Selector>> {
    use Reserved::{
        Health, Host, Ingress, Init, KubeApiserver, RemoteNode, Unmanaged, World, WorldIpv4, WorldIpv6,
    };
    let reserved = |list: &[Reserved]| {
        list.iter()
            .map(|one| Selector::reserved(*one))
            .collect::<Vec<_>>()
    };
    Some(match name {
        "all" => vec![Selector::wildcard()],
        "world" => reserved(&[World, WorldIpv4, WorldIpv6]),
        "world-ipv4" => reserved(&[WorldIpv4]),
        "world-ipv6" => reserved(&[WorldIpv6]),
        "host" => reserved(&[Host]),
        "remote-node" => reserved(&[RemoteNode]),
        "kube-apiserver" => reserved(&[KubeApiserver]),
        "health" => reserved(&[Health]),
        "init" => reserved(&[Init]),
        "ingress" => reserved(&[Ingress]),
        "unmanaged" => reserved(&[Unmanaged]),
        "none" => vec![crate::selector::LabelSelector::default().reserved("none").build()],
        "cluster" => {
            let mut peers = reserved(&[Host, RemoteNode, Init, Ingress, Health, Unmanaged, KubeApiserver]);
            let key = crate::selector::SelectorKey::new(
                skep_identity::LabelSource::K8s,
                skep_identity::Labels::CLUSTER,
            );
            peers.push(
                crate::selector::LabelSelector::default()
                    .with(key, cluster)
                    .build(),
            );
            peers
        }
        _ => return None,
    })
}
