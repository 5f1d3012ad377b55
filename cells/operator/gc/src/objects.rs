// SPDX-License-Identifier: Apache-2.0

//! Objects as they are judged here: with the fields of metadata that only an operator reads, and little else.
//!
//! They are types of their own, so that the compact types of the agents do not grow.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use skep_k8s_types::resource;
use skep_k8s_types::slim::Metadata;

/// Metadata with the time of creation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct FullMetadata {
    #[serde(flatten)]
    metadata: Metadata,
    #[serde(rename = "creationTimestamp")]
    created: Option<Timestamp>,
}

/// `cilium.io/v2/CiliumEndpoint`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "EndpointWire")]
pub(crate) struct Endpoint {
    pub(crate) metadata: Metadata,
    #[serde(skip)]
    pub(crate) created: Option<Timestamp>,
    #[serde(skip)]
    pub(crate) identity: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EndpointWire {
    metadata: FullMetadata,
    status: Option<StatusWire>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusWire {
    identity: Option<IdentityWire>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IdentityWire {
    id: Option<i64>,
}

impl From<EndpointWire> for Endpoint {
    fn from(wire: EndpointWire) -> Self {
        Self {
            created: wire.metadata.created,
            metadata: wire.metadata.metadata,
            identity: wire.status.and_then(|status| status.identity?.id),
        }
    }
}

/// `cilium.io/v2alpha1/CiliumEndpointSlice`: the identities of its endpoints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointSlice {
    pub(crate) metadata: Metadata,
    pub(crate) endpoints: Option<Vec<SliceEntry>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SliceEntry {
    pub(crate) id: Option<i64>,
}

/// `cilium.io/v2/CiliumNode`, its metadata.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumNode {
    pub(crate) metadata: Metadata,
}

/// `cilium.io/v2/CiliumIdentity`, its metadata.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Identity {
    pub(crate) metadata: Metadata,
}

// Owners and annotations are judged by.
resource!(
    Endpoint,
    "cilium.io",
    "v2",
    "CiliumEndpoint",
    "ciliumendpoints",
    true,
    fn compact(&mut self) {}
);
resource!(
    EndpointSlice,
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
    fn compact(&mut self) {}
);
resource!(
    CiliumNode,
    "cilium.io",
    "v2",
    "CiliumNode",
    "ciliumnodes",
    false,
    fn compact(&mut self) {}
);
resource!(
    Identity,
    "cilium.io",
    "v2",
    "CiliumIdentity",
    "ciliumidentities",
    false,
    fn compact(&mut self) {}
);
