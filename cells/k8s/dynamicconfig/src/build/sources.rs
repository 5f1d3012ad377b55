// SPDX-License-Identifier: Apache-2.0

//! Sources, read once → the keys that count.

use std::collections::BTreeMap;
use std::sync::Arc;

use skep_k8s_client::{Api, ApiError, Client};
use skep_k8s_types::Resource;
use skep_k8s_types::selector::SelectorError;
use skep_k8s_types::slim::Node;

use super::directory::DirectoryError;
use crate::config::{Overrides, Source, SourceKind};
use crate::object::{ConfigMap, Document, NodeConfig, is_key, node_document};

/// Why the configuration was not written.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Check the address and the credentials.
    #[error("the configuration cannot be read without a Kubernetes API server")]
    Disabled,
    /// Check the name and the role of the service account.
    #[error("cannot read {object}")]
    Read {
        object: String,
        #[source]
        cause: ApiError,
    },
    /// Correct the CiliumNodeConfig.
    #[error("the node selector of {object} is invalid")]
    Selector {
        object: String,
        #[source]
        cause: SelectorError,
    },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

type Entries = BTreeMap<String, String>;

/// The keys of all sources; later ones override earlier ones where they may. Also says where they are from.
pub(super) async fn read(
    client: &Arc<dyn Client>,
    sources: &[Source],
    overrides: &Overrides,
    node: &str,
) -> Result<Entries, BuildError> {
    if !client.is_enabled() {
        return Err(BuildError::Disabled);
    }
    let mut entries = Entries::new();
    let mut origins = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        for (origin, found) in objects(client, source, node).await? {
            let count = entries.len();
            let mut is_origin = false;
            for (key, value) in found {
                if !is_key(&key) {
                    tracing::warn!(source = %origin, key, "Ignoring invalid key");
                } else if index > 0 && !overrides.permits(&key) {
                    tracing::warn!(source = %origin, key, "Ignoring a key that this source may not override");
                } else {
                    is_origin = true;
                    entries.insert(key, value);
                }
            }
            tracing::info!(source = %origin, added = entries.len() - count, "Read configuration");
            if is_origin {
                origins.push(origin);
            }
        }
    }
    for (key, value) in [
        ("config-sources", serde_json::to_string(&origins)),
        ("config-sources-overrides", serde_json::to_string(overrides)),
    ] {
        // Lists of texts have a JSON form.
        entries.insert(key.to_owned(), value.unwrap_or_default());
    }
    Ok(entries)
}

/// The objects of a source with their keys, the weakest one first. What does not exist says nothing.
async fn objects(
    client: &Arc<dyn Client>,
    source: &Source,
    node: &str,
) -> Result<Vec<(Source, Entries)>, BuildError> {
    let Source {
        kind,
        namespace,
        name,
    } = source;
    let document = match kind {
        SourceKind::ConfigMap => get(client, source, ConfigMap::document).await?,
        SourceKind::Node => {
            let name = if name.is_empty() { node } else { name };
            let source = Source {
                name: name.to_owned(),
                ..source.clone()
            };
            let document = own_node(client, name).await?;
            return Ok(vec![(source, document.entries)]);
        }
        SourceKind::CiliumNodeConfig if name.is_empty() => {
            return selecting(client, namespace, node).await;
        }
        SourceKind::CiliumNodeConfig => get(client, source, NodeConfig::document).await?,
    };
    Ok(document
        .map(|document| (source.clone(), document.entries))
        .into_iter()
        .collect())
}

async fn get<T: Resource>(
    client: &Arc<dyn Client>,
    source: &Source,
    read: fn(&T) -> Result<Document, SelectorError>,
) -> Result<Option<Document>, BuildError> {
    let api = Api::<T>::namespaced(client.clone(), &source.namespace);
    match api.get(&source.name).await {
        Ok(object) => match read(&object) {
            Ok(document) => Ok(Some(document)),
            Err(cause) => Err(BuildError::Selector {
                object: source.to_string(),
                cause,
            }),
        },
        Err(error) if error.is_not_found() => {
            tracing::error!(source = %source, "No such source of the configuration");
            Ok(None)
        }
        Err(cause) => Err(BuildError::Read {
            object: source.to_string(),
            cause,
        }),
    }
}

async fn own_node(client: &Arc<dyn Client>, name: &str) -> Result<Document, BuildError> {
    let object = || format!("node/{name}");
    let found = Api::<Node>::all(client.clone()).get(name).await;
    let node = found.map_err(|cause| BuildError::Read {
        object: object(),
        cause,
    })?;
    node_document(&node).map_err(|cause| BuildError::Selector {
        object: object(),
        cause,
    })
}

/// The CiliumNodeConfigs of a namespace that select this node, by name.
async fn selecting(
    client: &Arc<dyn Client>,
    namespace: &str,
    node: &str,
) -> Result<Vec<(Source, Entries)>, BuildError> {
    let api = Api::<NodeConfig>::namespaced(client.clone(), namespace);
    let mut configs = match api.list_all().await {
        Ok(page) => page.items,
        // The kind is not registered.
        Err(error) if error.is_not_found() => Vec::new(),
        Err(cause) => {
            return Err(BuildError::Read {
                object: format!("cilium-node-config/{namespace}"),
                cause,
            });
        }
    };
    if configs.is_empty() {
        return Ok(Vec::new());
    }
    let labels = own_node(client, node).await?.labels;
    configs.sort_by(|a, b| a.metadata().name.cmp(&b.metadata().name));
    let mut found = Vec::new();
    for config in configs {
        let source = Source {
            kind: SourceKind::CiliumNodeConfig,
            namespace: namespace.to_owned(),
            name: config.metadata().name.to_string(),
        };
        let document = config
            .selecting_document()
            .map_err(|cause| BuildError::Selector {
                object: source.to_string(),
                cause,
            })?;
        if document.selector.is_none_or(|selector| selector.matches(&labels)) {
            found.push((source, document.entries));
        }
    }
    Ok(found)
}
