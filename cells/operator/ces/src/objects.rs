// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoints with the fields that slices have, CiliumNodes to be counted.

use serde::{Deserialize, Serialize};
use skep_k8s_crds::endpoint::CoreCiliumEndpoint;
use skep_k8s_crds::shared::{EncryptionSpec, EndpointNetworking, NamedPort};
use skep_k8s_types::resource;
use skep_k8s_types::slim::{Labels, Metadata};

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

/// `cilium.io/v2/CiliumNode`, to be counted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumNode {
    pub(crate) metadata: Metadata,
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
        self.metadata.labels = Labels::default();
        self.metadata.annotations = Labels::default();
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
        self.metadata.labels = Labels::default();
        self.metadata.annotations = Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
