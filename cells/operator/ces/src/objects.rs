// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoints with the fields that slices have, and what these are made of without CiliumEndpoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skep_identity::Labels;
use skep_k8s_crds::endpoint::CoreCiliumEndpoint;
use skep_k8s_crds::shared::{EncryptionSpec, EndpointNetworking, Integer, NamedPort};
use skep_k8s_types::resource;
use skep_k8s_types::slim::{self, Metadata};

/// `cilium.io/v2/CiliumEndpoint`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumEndpoint {
    pub(crate) metadata: Metadata,
    status: Option<Status>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Status {
    identity: Option<Identity>,
    encryption: Option<EncryptionSpec>,
    named_ports: Option<Vec<NamedPort>>,
    networking: Option<EndpointNetworking>,
    service_account: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Identity {
    id: Option<i64>,
}

impl CiliumEndpoint {
    /// What a slice has of it; `None` until it has an identity and addresses.
    pub(crate) fn entry(&self) -> Option<CoreCiliumEndpoint> {
        let status = self.status.as_ref()?;
        let owners = &self.metadata.owner_references;
        let pod = owners.iter().find(|owner| owner.kind == "Pod");
        let uid = pod.map(|pod| pod.uid.to_string());
        Some(CoreCiliumEndpoint {
            // Always written, empty for none.
            encryption: Some(status.encryption.clone().unwrap_or_default()),
            id: Some(status.identity.as_ref()?.id.unwrap_or_default()),
            name: Some(self.metadata.name.to_string()),
            named_ports: status.named_ports.clone().filter(|ports| !ports.is_empty()),
            networking: Some(status.networking.clone()?),
            pod_uid: uid.filter(|uid| !uid.is_empty()),
            service_account: status.service_account.clone().filter(|name| !name.is_empty()),
        })
    }
}

/// `cilium.io/v2/CiliumNode`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumNode {
    pub(crate) metadata: Metadata,
    spec: NodeSpec,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeSpec {
    addresses: Vec<NodeAddress>,
    encryption: EncryptionSpec,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeAddress {
    r#type: String,
    ip: String,
}

impl CiliumNode {
    /// The address by which other nodes reach it: the first internal one, IPv4 before IPv6.
    pub(crate) fn address(&self) -> Option<&str> {
        let internal = self
            .spec
            .addresses
            .iter()
            .filter(|address| address.r#type == "InternalIP");
        let addresses = internal.map(|address| &*address.ip).filter(|ip| !ip.is_empty());
        addresses.min_by_key(|ip| ip.contains(':'))
    }

    /// The key that its endpoints encrypt with; 0 for none.
    pub(crate) fn key(&self) -> Integer {
        self.spec.encryption.key.unwrap_or_default()
    }
}

/// `cilium.io/v2/CiliumIdentity`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct CiliumIdentity {
    pub(crate) metadata: Metadata,
    security_labels: BTreeMap<String, String>,
}

impl CiliumIdentity {
    /// The number; `None` for a name that is none.
    pub(crate) fn id(&self) -> Option<i64> {
        self.metadata.name.parse().ok()
    }

    /// The text of its labels; `None` if one of them is no label.
    pub(crate) fn labels(&self) -> Option<String> {
        let labels = self.security_labels.iter();
        let labels: Result<Labels, _> = labels
            .map(|(key, value)| format!("{key}={value}").parse())
            .collect();
        Some(labels.ok()?.to_string())
    }
}

// The owner of an endpoint is its pod.
resource!(
    CiliumEndpoint,
    "cilium.io",
    "v2",
    "CiliumEndpoint",
    "ciliumendpoints",
    true,
    fn compact(&mut self) {
        self.metadata.labels = slim::Labels::default();
        self.metadata.annotations = slim::Labels::default();
    }
);
resource!(
    CiliumNode,
    "cilium.io",
    "v2",
    "CiliumNode",
    "ciliumnodes",
    false,
    fn compact(&mut self) {
        self.metadata.labels = slim::Labels::default();
        self.metadata.annotations = slim::Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
resource!(
    CiliumIdentity,
    "cilium.io",
    "v2",
    "CiliumIdentity",
    "ciliumidentities",
    false,
    fn compact(&mut self) {
        self.metadata.labels = slim::Labels::default();
        self.metadata.annotations = slim::Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
