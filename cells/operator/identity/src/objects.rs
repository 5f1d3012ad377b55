// SPDX-License-Identifier: Apache-2.0

//! Pods with the fields that are read here, and identities that are written.

use serde::{Deserialize, Serialize};
use skep_identity::{Label, Labels};
use skep_k8s_types::resource;
use skep_k8s_types::slim::{self, CiliumIdentity, ContainerPort, Metadata, PodPhase, Str};
use skep_operator_gc::HEARTBEAT;

/// `v1/Pod`: its labels and its service account.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    service_account_name: Option<Str>,
    host_network: Option<bool>,
    containers: Option<Box<[Container]>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Container {
    ports: Option<Box<[ContainerPort]>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: PodPhase,
}

impl Pod {
    /// Whether it has an endpoint of its own, as long as it runs.
    pub(crate) fn has_identity(&self) -> bool {
        let has_ended = matches!(self.status.phase, PodPhase::Succeeded | PodPhase::Failed);
        !has_ended && self.spec.host_network != Some(true)
    }

    /// Name, protocol and number of the ports of its containers.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&str, &str, i32)> {
        let containers = self.spec.containers.iter().flatten();
        let ports = containers.flat_map(|container| container.ports.iter().flatten());
        ports.map(|port| (port.name.as_str(), port.protocol.as_str(), port.container_port))
    }

    pub(crate) fn service_account(&self) -> &str {
        self.spec.service_account_name.as_deref().unwrap_or_default()
    }
}

/// The CiliumIdentity for labels of pods in a namespace.
pub(crate) fn identity(id: u32, labels: &Labels) -> CiliumIdentity {
    let namespace = labels.get(Labels::NAMESPACE).map(Label::value);
    let metadata = Metadata {
        name: Str::new(id.to_string()),
        labels: slim::Labels::from_iter(namespace.map(|namespace| (Labels::NAMESPACE, namespace))),
        ..Metadata::default()
    };
    let security_labels = labels.iter().map(|label| {
        let name = format!("{}:{}", label.source(), label.key());
        (name, label.value().to_owned())
    });
    CiliumIdentity {
        metadata,
        security_labels: security_labels.collect(),
    }
}

/// Whether it has the annotation of an identity that was found unused.
pub(crate) fn is_marked(identity: &CiliumIdentity) -> bool {
    identity.metadata.annotations.contains_key(HEARTBEAT)
}

resource!(
    Pod,
    "",
    "v1",
    "Pod",
    "pods",
    true,
    fn compact(&mut self) {
        self.metadata.annotations = slim::Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
