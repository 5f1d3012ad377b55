// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoint and CiliumEndpointSlice with the fields that say what an address is.

use serde::{Deserialize, Serialize};
use skep_k8s_types::slim::{Labels, Metadata, Str};
use skep_k8s_types::{ObjectKey, Resource, resource};

/// `cilium.io/v2/CiliumEndpoint`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumEndpoint {
    pub(crate) metadata: Metadata,
    pub(crate) status: Option<EndpointStatus>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct EndpointStatus {
    pub(crate) identity: Option<EndpointIdentity>,
    pub(crate) encryption: Option<Encryption>,
    pub(crate) named_ports: Option<Vec<NamedPort>>,
    pub(crate) networking: Option<Networking>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointIdentity {
    pub(crate) id: Option<i64>,
}

/// `cilium.io/v2alpha1/CiliumEndpointSlice`. Its namespace is not in the metadata.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumEndpointSlice {
    pub(crate) metadata: Metadata,
    pub(crate) namespace: Option<Str>,
    pub(crate) endpoints: Option<Vec<SliceEntry>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct SliceEntry {
    pub(crate) name: Option<Str>,
    /// The identity.
    pub(crate) id: Option<i64>,
    pub(crate) encryption: Option<Encryption>,
    pub(crate) named_ports: Option<Vec<NamedPort>>,
    pub(crate) networking: Option<Networking>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Encryption {
    pub(crate) key: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NamedPort {
    pub(crate) name: Option<Str>,
    pub(crate) port: Option<i64>,
    pub(crate) protocol: Option<Str>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Networking {
    pub(crate) addressing: Option<Vec<AddressPair>>,
    pub(crate) node: Option<Str>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct AddressPair {
    pub(crate) ipv4: Option<Str>,
    pub(crate) ipv6: Option<Str>,
}

/// An endpoint as an object has it.
pub(crate) struct Described<'a> {
    pub(crate) key: ObjectKey,
    pub(crate) identity: Option<i64>,
    pub(crate) encryption: Option<&'a Encryption>,
    pub(crate) named_ports: &'a [NamedPort],
    pub(crate) networking: Option<&'a Networking>,
}

/// A kind of objects that have endpoints.
pub(crate) trait EndpointObject: Resource {
    fn endpoints(&self) -> Vec<Described<'_>>;
}

impl EndpointObject for CiliumEndpoint {
    fn endpoints(&self) -> Vec<Described<'_>> {
        let described = self.status.as_ref().map(|status| Described {
            key: ObjectKey::of(self),
            identity: status.identity.as_ref().and_then(|identity| identity.id),
            encryption: status.encryption.as_ref(),
            named_ports: status.named_ports.as_deref().unwrap_or_default(),
            networking: status.networking.as_ref(),
        });
        described.into_iter().collect()
    }
}

impl EndpointObject for CiliumEndpointSlice {
    fn endpoints(&self) -> Vec<Described<'_>> {
        let namespace = self.namespace.clone().unwrap_or_default();
        let entries = self.endpoints.iter().flatten();
        entries
            .map(|entry| Described {
                key: ObjectKey {
                    namespace: namespace.clone(),
                    name: entry.name.clone().unwrap_or_default(),
                },
                identity: entry.id,
                encryption: entry.encryption.as_ref(),
                named_ports: entry.named_ports.as_deref().unwrap_or_default(),
                networking: entry.networking.as_ref(),
            })
            .collect()
    }
}

resource!(
    CiliumEndpoint,
    "cilium.io",
    "v2",
    "CiliumEndpoint",
    "ciliumendpoints",
    true,
    fn compact(&mut self) {
        forget(&mut self.metadata);
    }
);
resource!(
    CiliumEndpointSlice,
    "cilium.io",
    "v2alpha1",
    "CiliumEndpointSlice",
    "ciliumendpointslices",
    false,
    fn compact(&mut self) {
        forget(&mut self.metadata);
    }
);

/// What no reader needs.
fn forget(metadata: &mut Metadata) {
    metadata.labels = Labels::default();
    metadata.annotations = Labels::default();
    metadata.owner_references = Box::default();
}
