// SPDX-License-Identifier: Apache-2.0

//! Claims → what a prefix is.
//!
//! Claims with labels are one: their labels are united, each other fact is that of the strongest claim that has it, and
//! its source is the strongest of theirs. Between it and the claims with identities the strongest source wins; at equal
//! strength the claims with labels, which are about nodes.

use std::net::IpAddr;
use std::sync::Arc;

use skep_bpf_maps::node::IpcacheValue;
use skep_identity::{NumericIdentity, ReservedLabels};

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
    /// What the prefix is; `None` if it has no claim, or if only labels are claimed that have no reserved identity.
    pub fn resolve(&self) -> Option<Resolved<'_>> {
        let number = self.iter().find_map(|claim| match claim.identity {
            ClaimedIdentity::Number(identity) => Some((claim, identity)),
            ClaimedIdentity::Labels(_) => None,
        });
        let labels = self.iter().filter(|claim| labels_of(claim).is_some());
        let strongest = labels.clone().next().map(|claim| claim.owner.source);
        if let Some((claim, identity)) = number
            && strongest.is_none_or(|source| claim.owner.source.is_stronger_than(source))
        {
            return Some(one(claim, identity));
        }
        let source = strongest?;
        let identity = labels
            .clone()
            .filter_map(labels_of)
            .fold(ReservedLabels::NONE, ReservedLabels::union)
            .identity();
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
}

fn labels_of(claim: &Claim) -> Option<ReservedLabels> {
    match claim.identity {
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
