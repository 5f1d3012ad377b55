// SPDX-License-Identifier: Apache-2.0

//! Pods and identities with the fields that are read here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skep_identity::{Label, LabelError, Labels};
use skep_k8s_types::slim::{self, Metadata, PodPhase, Str};
use skep_k8s_types::{Kind, Resource};
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

macro_rules! resource {
    (
        $type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal, $namespaced:literal,
        |$object:ident| $($first:stmt)?
    ) => {
        impl Resource for $type {
            fn kind() -> Kind {
                const { Kind::new($group, $version, $kind, $plural, $namespaced) }
            }

            fn metadata(&self) -> &Metadata {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Metadata {
                &mut self.metadata
            }

            fn compact(&mut self) {
                let $object = &mut *self;
                $($first)?
                $object.metadata.annotations = slim::Labels::default();
                $object.metadata.owner_references = Box::default();
            }
        }
    };
}

resource!(Pod, "", "v1", "Pod", "pods", true, |pod|);
resource!(
    Identity,
    "cilium.io",
    "v2",
    "CiliumIdentity",
    "ciliumidentities",
    false,
    |identity| identity.is_marked |= identity.metadata.annotations.contains_key(HEARTBEAT)
);
