// SPDX-License-Identifier: Apache-2.0

//! Objects as they are judged here: with the fields of metadata that only an operator reads, and little else.
//!
//! They are types of their own, so that the compact types of the agents do not grow.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use skep_k8s_types::slim::Metadata;
use skep_k8s_types::{Kind, Resource};

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

macro_rules! resource {
    ($type:ty, $version:literal, $kind:literal, $plural:literal, $namespaced:literal) => {
        impl Resource for $type {
            fn kind() -> Kind {
                const { Kind::new("cilium.io", $version, $kind, $plural, $namespaced) }
            }

            fn metadata(&self) -> &Metadata {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Metadata {
                &mut self.metadata
            }

            // Owners and annotations are judged by.
            fn compact(&mut self) {}
        }
    };
}

resource!(Endpoint, "v2", "CiliumEndpoint", "ciliumendpoints", true);
resource!(
    EndpointSlice,
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false
);
resource!(CiliumNode, "v2", "CiliumNode", "ciliumnodes", false);
resource!(Identity, "v2", "CiliumIdentity", "ciliumidentities", false);
