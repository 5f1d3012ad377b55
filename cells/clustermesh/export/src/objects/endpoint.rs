// SPDX-License-Identifier: Apache-2.0

//! `cilium.io` CiliumEndpoint, CiliumEndpointSlice and CiliumIdentity.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skep_k8s_types::slim::{Metadata, Str};

use skep_k8s_types::resource;

/// An endpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumEndpoint {
    pub(crate) metadata: Metadata,
    pub(crate) status: Option<StatusWire>,
}

/// Its state, written by an agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct StatusWire {
    pub(crate) identity: Option<IdentityWire>,
    #[serde(flatten)]
    pub(crate) endpoint: EndpointWire,
}

/// Its identity.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IdentityWire {
    pub(crate) id: i64,
}

/// What endpoints and entries of slices have in common.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct EndpointWire {
    pub(crate) networking: Option<NetworkingWire>,
    pub(crate) encryption: Option<EncryptionWire>,
    pub(crate) named_ports: Option<Vec<NamedPortWire>>,
    pub(crate) service_account: Option<Str>,
}

/// Its addresses.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NetworkingWire {
    pub(crate) addressing: Option<Vec<AddressesWire>>,
    pub(crate) node: Option<Str>,
}

/// A pair of addresses.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AddressesWire {
    pub(crate) ipv4: Option<Str>,
    pub(crate) ipv6: Option<Str>,
}

/// Its encryption key.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EncryptionWire {
    pub(crate) key: Option<i64>,
}

/// A port with a name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NamedPortWire {
    pub(crate) name: Option<Str>,
    pub(crate) port: Option<i64>,
    pub(crate) protocol: Option<Str>,
}

/// Endpoints of one namespace.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumEndpointSlice {
    pub(crate) metadata: Metadata,
    pub(crate) namespace: Option<Str>,
    pub(crate) endpoints: Option<Vec<SliceEntry>>,
}

/// An endpoint in a slice.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct SliceEntry {
    pub(crate) name: Option<Str>,
    pub(crate) id: Option<i64>,
    pub(crate) pod_uid: Option<Str>,
    #[serde(flatten)]
    pub(crate) endpoint: EndpointWire,
}

/// An identity. Its name is the number.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct CiliumIdentity {
    pub(crate) metadata: Metadata,
    pub(crate) security_labels: Option<BTreeMap<String, String>>,
}

resource!(
    CiliumEndpoint,
    "cilium.io",
    "v2",
    "CiliumEndpoint",
    "ciliumendpoints",
    true
);
resource!(
    CiliumEndpointSlice,
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false
);
resource!(
    CiliumIdentity,
    "cilium.io",
    "v2",
    "CiliumIdentity",
    "ciliumidentities",
    false
);
