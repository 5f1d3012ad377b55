// SPDX-License-Identifier: Apache-2.0

//! What a source says about a prefix.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use compact_str::CompactString;
use skep_bpf_maps::node::ipcache_flags;
use skep_identity::{Labels, NumericIdentity};
use smallvec::SmallVec;

use crate::source::Source;

/// The object that a claim is about: `<kind>/<namespace>/<name>`. Clones share the text: a source of many entries makes one
/// and clones it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(Arc<str>);

impl ResourceId {
    /// The id of an object; the namespace is empty for objects of the cluster.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{kind}/{namespace}/{name}").into())
    }

    pub fn kind(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
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

/// Who claims: an object as a source has it. An owner has one claim on a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub source: Source,
    pub resource: ResourceId,
}

impl Owner {
    pub fn new(source: Source, resource: ResourceId) -> Self {
        Self { source, resource }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.resource)
    }
}

bitflags::bitflags! {
    /// Flags of an entry, with the bits of the map.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EndpointFlags: u8 {
        /// Packets are not encapsulated.
        const SKIP_TUNNEL = ipcache_flags::SKIP_TUNNEL;
        /// The prefix belongs to another cluster of the mesh.
        const REMOTE_CLUSTER = ipcache_flags::REMOTE_CLUSTER;
    }
}

/// The pod that has an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodMetadata {
    pub namespace: CompactString,
    pub name: CompactString,
    /// Named ports: name, IP protocol number, port; sorted.
    pub named_ports: Box<[(CompactString, u8, u16)]>,
}

impl PodMetadata {
    /// Number of a protocol (IANA) by its name in Kubernetes: 0 for `ANY` and for none. `None` for an unknown name.
    pub fn protocol(name: &str) -> Option<u8> {
        Some(match name {
            "TCP" => 6,
            "UDP" => 17,
            "SCTP" => 132,
            "ICMP" => 1,
            "ICMPV6" => 58,
            "ANY" | "" => 0,
            _ => return None,
        })
    }
}

impl fmt::Display for PodMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimedIdentity {
    /// The identity of an endpoint or a network: it is what the prefix is if its source is the strongest.
    Number(NumericIdentity),
    /// Labels, which are united with those of all other claims with labels; the identity is that of all together.
    Labels(Arc<Labels>),
}

/// What an owner says about a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub owner: Owner,
    pub identity: ClaimedIdentity,
    /// The node that packets to the prefix are tunnelled to; `None` on this node, and if it is not known.
    pub tunnel_peer: Option<IpAddr>,
    /// Index of the key that packets to the prefix are encrypted with, 0 for none; `None` leaves it to weaker claims.
    pub encrypt_key: Option<u8>,
    pub flags: EndpointFlags,
    /// The pod that has the address.
    pub pod: Option<Arc<PodMetadata>>,
}

impl Claim {
    /// The identity of an endpoint or a network.
    pub fn identity(owner: Owner, identity: NumericIdentity) -> Self {
        Self {
            owner,
            identity: ClaimedIdentity::Number(identity),
            tunnel_peer: None,
            encrypt_key: None,
            flags: EndpointFlags::empty(),
            pod: None,
        }
    }

    /// Labels: reserved ones, of a network, a DNS name, a node.
    pub fn labels(owner: Owner, labels: impl Into<Arc<Labels>>) -> Self {
        Self {
            identity: ClaimedIdentity::Labels(labels.into()),
            ..Self::identity(owner, NumericIdentity::UNKNOWN)
        }
    }

    /// With the node that packets are tunnelled to.
    #[must_use]
    pub fn tunnel_peer(mut self, node: impl Into<Option<IpAddr>>) -> Self {
        self.tunnel_peer = node.into();
        self
    }

    /// With the key that packets are encrypted with.
    #[must_use]
    pub fn encrypt_key(mut self, key: u8) -> Self {
        self.encrypt_key = Some(key);
        self
    }

    #[must_use]
    pub fn flags(mut self, flags: EndpointFlags) -> Self {
        self.flags = flags;
        self
    }

    /// With the pod that has the address.
    #[must_use]
    pub fn pod(mut self, pod: impl Into<Option<Arc<PodMetadata>>>) -> Self {
        self.pod = pod.into();
        self
    }
}

/// The claims on a prefix: strongest source first; of one source, the one that changed last first. Mostly there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims(SmallVec<[Claim; 1]>);

impl Claims {
    pub fn iter(&self) -> std::slice::Iter<'_, Claim> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn of(&self, owner: &Owner) -> Option<&Claim> {
        self.0.iter().find(|claim| claim.owner == *owner)
    }

    /// Adds a claim, or replaces the one that its owner has. An equal one stays where it is.
    pub(crate) fn upsert(&mut self, claim: Claim) {
        if self.of(&claim.owner) == Some(&claim) {
            return;
        }
        self.remove(&claim.owner);
        let stronger = |other: &Claim| other.owner.source.is_stronger_than(claim.owner.source);
        let at = self.0.partition_point(stronger);
        self.0.insert(at, claim);
    }

    /// Removes the claim of an owner; false if it has none.
    pub(crate) fn remove(&mut self, owner: &Owner) -> bool {
        let at = self.0.iter().position(|claim| claim.owner == *owner);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Removes the claims of which this is true.
    pub(crate) fn remove_if(&mut self, is_removed: impl Fn(&Owner) -> bool) {
        self.0.retain(|claim| !is_removed(&claim.owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(source: Source, name: &str) -> Owner {
        Owner::new(source, ResourceId::new("node", "", name))
    }

    fn claim(source: Source, name: &str, identity: u32) -> Claim {
        Claim::identity(owner(source, name), NumericIdentity::new(identity))
    }

    fn names(claims: &Claims) -> Vec<&str> {
        claims.iter().map(|claim| claim.owner.resource.as_str()).collect()
    }

    #[test]
    fn stronger_sources_come_first_and_of_one_source_the_last_change() {
        let mut claims = Claims::default();

        claims.upsert(claim(Source::ClusterMesh, "a", 1));
        claims.upsert(claim(Source::Local, "b", 1));
        claims.upsert(claim(Source::ClusterMesh, "c", 1));
        assert_eq!(names(&claims), ["node//b", "node//c", "node//a"]);
        claims.upsert(claim(Source::ClusterMesh, "a", 1));
        assert_eq!(
            names(&claims),
            ["node//b", "node//c", "node//a"],
            "nothing changed"
        );
        claims.upsert(claim(Source::ClusterMesh, "a", 2));
        assert_eq!(names(&claims), ["node//b", "node//a", "node//c"]);
    }

    #[test]
    fn only_the_owner_removes_its_claim() {
        let mut claims = Claims::default();
        claims.upsert(claim(Source::ClusterMesh, "a", 1));

        assert!(!claims.remove(&owner(Source::KvStore, "a")));
        assert!(!claims.remove(&owner(Source::ClusterMesh, "b")));
        assert!(claims.remove(&owner(Source::ClusterMesh, "a")));
        assert!(claims.is_empty());
    }

    #[test]
    fn owners_and_resources_have_texts() {
        let owner = Owner::new(Source::CustomResource, ResourceId::new("cep", "shop", "cart-0"));

        assert_eq!(owner.to_string(), "custom-resource:cep/shop/cart-0");
        assert_eq!(owner.resource.kind(), "cep");
    }
}
