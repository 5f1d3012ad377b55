// SPDX-License-Identifier: Apache-2.0

//! Objects that hold configuration, with the fields that are read here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skep_k8s_types::selector::{Selector, SelectorError};
use skep_k8s_types::slim::{LabelSelector, Labels, Metadata, Node};
use skep_k8s_types::{Kind, Resource};

/// How annotations of nodes begin that are configuration.
const ANNOTATION: &str = "config.cilium.io/";

/// What an object says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Document {
    pub(crate) entries: BTreeMap<String, String>,
    /// Nodes that it is for; none for all.
    pub(crate) selector: Option<Selector>,
    /// Labels of a node.
    pub(crate) labels: Labels,
}

/// An object with configuration.
pub(crate) trait Configuration: Resource {
    fn document(&self) -> Result<Document, SelectorError>;
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

impl Configuration for ConfigMap {
    fn document(&self) -> Result<Document, SelectorError> {
        Ok(Document {
            entries: self.data.clone().unwrap_or_default(),
            ..Document::default()
        })
    }
}

impl Configuration for NodeConfig {
    fn document(&self) -> Result<Document, SelectorError> {
        let selector = self.spec.node_selector.clone().unwrap_or_default();
        Ok(Document {
            entries: self.spec.defaults.clone().unwrap_or_default(),
            selector: Some(Selector::try_from(&selector)?),
            ..Document::default()
        })
    }
}

impl Configuration for Node {
    fn document(&self) -> Result<Document, SelectorError> {
        let annotations = self.metadata.annotations.iter();
        let entries = annotations.filter_map(|(key, value)| {
            let key = key.strip_prefix(ANNOTATION).filter(|key| !key.is_empty())?;
            Some((key.to_owned(), value.to_owned()))
        });
        Ok(Document {
            entries: entries.collect(),
            selector: None,
            labels: self.metadata.labels.clone(),
        })
    }
}
