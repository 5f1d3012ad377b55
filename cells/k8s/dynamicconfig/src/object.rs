// SPDX-License-Identifier: Apache-2.0

//! Objects that hold configuration, with the fields that are read here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skep_k8s_types::selector::{Selector, SelectorError};
use skep_k8s_types::slim::{LabelSelector, Labels, Metadata, Node};
use skep_k8s_types::{Kind, Resource};

/// How labels and annotations of nodes begin that are configuration.
const PREFIX: &str = "config.cilium.io/";

#[derive(Debug, Clone, Default)]
pub(crate) struct Document {
    pub(crate) entries: BTreeMap<String, String>,
    /// Nodes that it is for; none for all.
    pub(crate) selector: Option<Selector>,
    pub(crate) labels: Labels,
}

/// `v1/ConfigMap`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigMap {
    metadata: Metadata,
    data: Option<BTreeMap<String, String>>,
}

/// `cilium.io/v2/CiliumNodeConfig`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeConfig {
    metadata: Metadata,
    spec: NodeConfigSpec,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeConfigSpec {
    defaults: Option<BTreeMap<String, String>>,
    node_selector: Option<LabelSelector>,
}

impl Resource for ConfigMap {
    fn kind() -> Kind {
        const { Kind::CONFIG_MAP }
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

impl Resource for NodeConfig {
    fn kind() -> Kind {
        const { Kind::new("cilium.io", "v2", "CiliumNodeConfig", "ciliumnodeconfigs", true) }
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

impl ConfigMap {
    pub(crate) fn document(&self) -> Result<Document, SelectorError> {
        Ok(Document {
            entries: self.data.clone().unwrap_or_default(),
            ..Document::default()
        })
    }
}

impl NodeConfig {
    /// What it says to all nodes that it selects.
    pub(crate) fn selecting_document(&self) -> Result<Document, SelectorError> {
        let selector = self.spec.node_selector.clone().unwrap_or_default();
        Ok(Document {
            selector: Some(Selector::try_from(&selector)?),
            ..self.document()?
        })
    }

    /// What it says, whichever nodes it selects.
    pub(crate) fn document(&self) -> Result<Document, SelectorError> {
        Ok(Document {
            entries: self.spec.defaults.clone().unwrap_or_default(),
            ..Document::default()
        })
    }
}

/// What a node says: its labels, then its annotations.
pub(crate) fn node_document(node: &Node) -> Result<Document, SelectorError> {
    let (labels, annotations) = (&node.metadata.labels, &node.metadata.annotations);
    let mut entries = BTreeMap::new();
    for (name, value) in labels.iter().chain(annotations.iter()) {
        let Some(key) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if is_key(key) {
            entries.insert(key.to_owned(), value.to_owned());
        } else {
            tracing::warn!(node = %node.metadata.name, name, "Ignoring invalid key");
        }
    }
    Ok(Document {
        entries,
        labels: labels.clone(),
        ..Document::default()
    })
}

/// Whether a ConfigMap may have a key.
pub(crate) fn is_key(key: &str) -> bool {
    let is_char = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    !key.is_empty() && key.len() <= 253 && key != "." && !key.starts_with("..") && key.chars().all(is_char)
}
