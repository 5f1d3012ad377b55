// SPDX-License-Identifier: Apache-2.0

//! Pods and identities with the fields that are read here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skep_identity::{Label, LabelError, Labels};
use skep_k8s_types::resource;
use skep_k8s_types::slim::{self, Metadata, PodPhase, Str};
use skep_operator_gc::identities::HEARTBEAT;

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

    pub(crate) fn service_account(&self) -> &str {
        self.spec.service_account_name.as_deref().unwrap_or_default()
    }
}

/// `cilium.io/v2/CiliumIdentity`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Identity {
    pub(crate) metadata: Metadata,
    security_labels: BTreeMap<String, String>,
    /// It has the annotation of an identity that was found unused.
    #[serde(skip)]
    pub(crate) is_marked: bool,
}

impl Identity {
    /// The object for labels of pods in a namespace.
    pub(crate) fn new(id: u32, labels: &Labels) -> Self {
        let namespace = labels.get(Labels::NAMESPACE).map(Label::value);
        let metadata = Metadata {
            name: Str::new(id.to_string()),
            labels: slim::Labels::from_iter(
                namespace.map(|namespace| (Labels::NAMESPACE.to_owned(), namespace.to_owned())),
            ),
            ..Metadata::default()
        };
        let security_labels = labels.iter().map(|label| {
            let key = format!("{}:{}", label.source(), label.key());
            (key, label.value().to_owned())
        });
        Self {
            metadata,
            security_labels: security_labels.collect(),
            is_marked: false,
        }
    }

    /// The number; `None` for a name that is none.
    pub(crate) fn id(&self) -> Option<u32> {
        self.metadata.name.parse().ok()
    }

    /// # Errors
    ///
    /// The first label that is none.
    pub(crate) fn labels(&self) -> Result<Labels, LabelError> {
        let labels = self.security_labels.iter();
        labels
            .map(|(key, value)| format!("{key}={value}").parse())
            .collect()
    }
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
resource!(
    Identity,
    "cilium.io",
    "v2",
    "CiliumIdentity",
    "ciliumidentities",
    false,
    fn compact(&mut self) {
        self.is_marked |= self.metadata.annotations.contains_key(HEARTBEAT);
        self.metadata.annotations = slim::Labels::default();
        self.metadata.owner_references = Box::default();
    }
);
