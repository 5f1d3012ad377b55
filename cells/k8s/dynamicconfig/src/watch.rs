// SPDX-License-Identifier: Apache-2.0

//! Sources → rows.
//!
//! Each source is watched on its own; what one says counts until it says something else, also while it cannot be reached.
//! A source with a name is one object, whatever it selects. CiliumNodeConfigs without a name are judged by the labels of the
//! node: without a node, only those for all nodes count.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::{Jobs, SpawnError};
use parking_lot::Mutex;
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{Feed, Rejected, Sink, State};
use skep_k8s_types::selector::{FieldSelector, SelectorError};
use skep_k8s_types::slim::{Labels, Node, Str};
use skep_k8s_types::{ObjectKey, Resource};
use statedb::{Db, InitGuard, RwTable, WriteTxn};

use crate::config::{Config, Overrides, Source, SourceKind};
use crate::object::{ConfigMap, Document, NodeConfig, node_document};
use crate::row::ConfigEntry;

/// An object of a source is invalid: what it said before counts.
#[derive(Debug, thiserror::Error)]
#[error("{text} `{object}`")]
struct InvalidDocument {
    text: String,
    object: Str,
    #[source]
    cause: SelectorError,
}

/// The documents of all sources in their order, then this node.
struct Documents {
    sources: Vec<BTreeMap<ObjectKey, Document>>,
    /// Sources that were not listed yet.
    awaited: Vec<bool>,
    overrides: Overrides,
}

/// Keeps the table in step with the sources.
#[derive(Clone)]
pub(crate) struct Watch {
    db: Db,
    table: RwTable<ConfigEntry>,
    guard: Arc<InitGuard>,
    documents: Arc<Mutex<Documents>>,
}

/// What an object of a kind says.
type Read<T> = fn(&T) -> Result<Document, SelectorError>;

/// A source: its objects, by the table of all sources.
struct SourceObjects<T> {
    watch: Watch,
    index: usize,
    text: String,
    read: Read<T>,
}

/// The priority of what a source says, as Cilium numbers it: the last source is the strongest, but weaker than the first for
/// keys that it may not set.
fn priority(sources: usize, index: usize, is_permitted: bool) -> usize {
    match index {
        0 => sources,
        _ if is_permitted => sources - index,
        _ => sources + index,
    }
}

impl Watch {
    /// Watches the sources that the settings name: a job for each.
    pub(crate) fn spawn(
        (db, table, guard): (Db, RwTable<ConfigEntry>, InitGuard),
        client: &Arc<dyn Client>,
        config: &Config,
        node: &str,
        jobs: &Jobs,
    ) -> Result<(), SpawnError> {
        // Validation has rejected invalid ones.
        let sources = config.sources().unwrap_or_default();
        // Labels of this node matter only to CiliumNodeConfigs that are not named.
        let has_selectors = sources
            .iter()
            .any(|source| source.kind == SourceKind::CiliumNodeConfig && source.name.is_empty());
        let own = Source {
            kind: SourceKind::Node,
            namespace: String::new(),
            name: node.to_owned(),
        };
        let mut awaited = vec![true; sources.len()];
        awaited.push(has_selectors);
        let watch = Self {
            db,
            table,
            guard: Arc::new(guard),
            documents: Arc::new(Mutex::new(Documents {
                sources: vec![BTreeMap::new(); sources.len() + 1],
                awaited,
                overrides: config.overrides().unwrap_or_default(),
            })),
        };
        let named = |name: &str| FieldSelector::equal("metadata.name", name);
        let all = sources.iter().chain(has_selectors.then_some(&own));
        for (index, source) in all.enumerate() {
            let Source {
                kind,
                namespace,
                name,
            } = source;
            match kind {
                SourceKind::ConfigMap => {
                    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                    watch.feed(index, source, api.fields(named(name)), ConfigMap::document, jobs)?;
                }
                SourceKind::CiliumNodeConfig => {
                    let api = Api::<NodeConfig>::namespaced(client.clone(), namespace);
                    match name.as_str() {
                        "" => watch.feed(index, source, api, NodeConfig::selecting_document, jobs)?,
                        name => {
                            watch.feed(index, source, api.fields(named(name)), NodeConfig::document, jobs)?;
                        }
                    }
                }
                SourceKind::Node => {
                    let name = if name.is_empty() { node } else { name };
                    let api = Api::<Node>::all(client.clone()).fields(named(name));
                    watch.feed(index, source, api, node_document, jobs)?;
                }
            }
        }
        Ok(())
    }

    fn feed<T: Resource>(
        &self,
        index: usize,
        source: &Source,
        api: Api<T>,
        read: Read<T>,
        jobs: &Jobs,
    ) -> Result<(), SpawnError> {
        let objects = SourceObjects {
            watch: self.clone(),
            index,
            text: source.to_string(),
            read,
        };
        Feed::new(&format!("watch-source-{index}"), Arc::new(api), objects)
            .optional_kind()
            .spawn(jobs)
    }

    /// Writes the rows that the documents require.
    fn write(&self, txn: &mut WriteTxn, documents: &Documents) -> Result<(), statedb::Error> {
        let rows = documents.rows();
        let present: Vec<ConfigEntry> = self.table.all(txn).map(|row| (**row).clone()).collect();
        for row in present.iter().filter(|row| !rows.contains_key(&row.id())) {
            self.table.delete(txn, row)?;
        }
        let present: BTreeMap<String, ConfigEntry> = present.into_iter().map(|row| (row.id(), row)).collect();
        for (id, row) in rows {
            if present.get(&id) != Some(&row) {
                self.table.insert(txn, row)?;
            }
        }
        Ok(())
    }
}

impl Documents {
    fn rows(&self) -> BTreeMap<String, ConfigEntry> {
        let Some((own, sources)) = self.sources.split_last() else {
            return BTreeMap::new();
        };
        let labels = own
            .values()
            .next()
            .map_or_else(Labels::default, |node| node.labels.clone());
        let is_node_listed = self.awaited.last() == Some(&false);
        let selects = |document: &Document| match &document.selector {
            None => true,
            Some(selector) => is_node_listed && selector.matches(&labels),
        };
        let mut rows: BTreeMap<String, ConfigEntry> = BTreeMap::new();
        for (index, documents) in sources.iter().enumerate() {
            for (object, document) in documents.iter().filter(|(_, document)| selects(document)) {
                for (name, value) in &document.entries {
                    let is_permitted = self.overrides.permits(name);
                    let row = ConfigEntry {
                        name: name.clone(),
                        source: object.name.to_string(),
                        priority: priority(sources.len(), index, is_permitted),
                        value: value.clone(),
                    };
                    // Objects of two sources may have the same name.
                    let stronger = rows.get(&row.id()).filter(|other| other.priority <= row.priority);
                    if stronger.is_none() {
                        rows.insert(row.id(), row);
                    }
                }
            }
        }
        rows
    }
}

impl<T: Resource> Sink<T> for SourceObjects<T> {
    fn write(&mut self) -> WriteTxn {
        self.watch.db.write(&[&self.watch.table])
    }

    fn apply(
        &mut self,
        txn: &mut WriteTxn,
        key: &ObjectKey,
        state: State<'_, T>,
    ) -> Result<Option<Rejected>, statedb::Error> {
        let mut documents = self.watch.documents.lock();
        let own = &mut documents.sources[self.index];
        match state {
            State::Applied(object) => match (self.read)(object) {
                Ok(document) => _ = own.insert(key.clone(), document),
                Err(cause) => {
                    let error = InvalidDocument {
                        text: self.text.clone(),
                        object: key.name.clone(),
                        cause,
                    };
                    return Ok(Some(Rejected::new(&error)));
                }
            },
            State::Deleted(_) => _ = own.remove(key),
        }
        self.watch.write(txn, &documents)?;
        Ok(None)
    }

    fn objects(&self) -> Vec<ObjectKey> {
        let documents = self.watch.documents.lock();
        documents.sources[self.index].keys().cloned().collect()
    }

    fn listed(&mut self, txn: &mut WriteTxn) -> Result<(), statedb::Error> {
        let mut documents = self.watch.documents.lock();
        documents.awaited[self.index] = false;
        self.watch.write(txn, &documents)?;
        if !documents.awaited.contains(&true) {
            txn.initialized(&self.watch.guard)?;
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let documents = self.watch.documents.lock();
        let entries = documents.sources[self.index]
            .values()
            .map(|document| document.entries.len());
        format!("{} entries of {}", entries.sum::<usize>(), self.text)
    }
}
