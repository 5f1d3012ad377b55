// SPDX-License-Identifier: Apache-2.0

//! Claims → what a prefix is.
//!
//! Claims with labels are one: their labels are united, each other fact is that of the strongest claim that has it, and
//! its source is the strongest of theirs. Their identity is a reserved one or one of this node (`local.rs`). Between it and the claims with identities the strongest source wins; at equal
//! strength the claims with labels, which are about nodes.

use std::net::IpAddr;
use std::sync::Arc;

use skep_bpf_maps::node::IpcacheValue;
use skep_identity::{Label, Labels, NumericIdentity, ReservedLabels};
use skep_identity_cache::LocalIdentity;

use crate::claim::{Claim, ClaimedIdentity, Claims, EndpointFlags, PodMetadata};
use crate::source::Source;

/// What a prefix is, by all claims on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    pub source: Source,
    pub identity: NumericIdentity,
    /// The node that packets are tunnelled to.
    pub tunnel_peer: Option<IpAddr>,
    /// Index of the key that packets are encrypted with, 0 for none.
    pub encrypt_key: u8,
    pub flags: EndpointFlags,
    /// The pod that has the address.
    pub pod: Option<&'a Arc<PodMetadata>>,
}

impl Resolved<'_> {
    pub fn map_value(&self) -> IpcacheValue {
        let mut value = IpcacheValue::new(self.identity.get());
        if let Some(node) = self.tunnel_peer {
            value = value.with_tunnel_endpoint(node);
        }
        value.encrypt_key = self.encrypt_key;
        value.flags |= self.flags.bits();
        value
    }
}

impl Claims {
    /// What the prefix is; `None` if it has no claim, or if labels are claimed that have neither a reserved identity nor `local`,
    /// an identity of this node.
    pub(crate) fn resolve(&self, local: Option<&LocalIdentity>) -> Option<Resolved<'_>> {
        let number = self.number();
        let labels = self.iter().filter(|claim| labels_of(claim).is_some());
        let strongest = labels.clone().next().map(|claim| claim.owner.source);
        if let Some((claim, identity)) = number
            && strongest.is_none_or(|source| claim.owner.source.is_stronger_than(source))
        {
            return Some(one(claim, identity));
        }
        let source = strongest?;
        let identity = local
            .map(LocalIdentity::id)
            .or_else(|| self.reserved().identity());
        let Some(identity) = identity else {
            return number.map(|(claim, identity)| one(claim, identity));
        };
        Some(Resolved {
            source,
            identity,
            tunnel_peer: labels.clone().find_map(|claim| claim.tunnel_peer),
            encrypt_key: labels.clone().find_map(|claim| claim.encrypt_key).unwrap_or(0),
            flags: labels
                .clone()
                .map(|claim| claim.flags)
                .find(|flags| !flags.is_empty())
                .unwrap_or_default(),
            pod: labels.clone().find_map(|claim| claim.pod.as_ref()),
        })
    }

    /// The strongest claim with an identity.
    pub(crate) fn number(&self) -> Option<(&Claim, NumericIdentity)> {
        self.iter().find_map(|claim| match claim.identity {
            ClaimedIdentity::Number(identity) => Some((claim, identity)),
            ClaimedIdentity::Labels(_) => None,
        })
    }

    /// Claimed labels, those of the strongest claim last.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &Label> {
        let claims = self.iter().rev().filter_map(labels_of);
        claims.flat_map(|labels| labels.iter())
    }

    pub(crate) fn reserved(&self) -> ReservedLabels {
        self.labels().filter_map(Label::reserved).collect()
    }
}

fn labels_of(claim: &Claim) -> Option<&Labels> {
    match &claim.identity {
        ClaimedIdentity::Labels(labels) => Some(labels),
        ClaimedIdentity::Number(_) => None,
    }
}

fn one(claim: &Claim, identity: NumericIdentity) -> Resolved<'_> {
    Resolved {
        source: claim.owner.source,
        identity,
        tunnel_peer: claim.tunnel_peer,
        encrypt_key: claim.encrypt_key.unwrap_or(0),
        flags: claim.flags,
        pod: claim.pod.as_ref(),
    }
}
