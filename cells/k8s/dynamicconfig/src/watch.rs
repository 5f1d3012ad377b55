// SPDX-License-Identifier: Apache-2.0

//! Sources → rows.
//!
//! Each source is watched on its own; what one says counts until it says something else, also while it cannot be reached.
//! A source with a name is one object, whatever it selects. CiliumNodeConfigs without a name are judged by the labels of the
//! node: without a node, only those for all nodes count.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use hive::Health;
use skep_k8s_client::{Api, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::Resource;
use skep_k8s_types::selector::{FieldSelector, SelectorError};
use skep_k8s_types::slim::{Labels, Node};
use statedb::{Db, InitGuard, RwTable};

use crate::config::{Config, Overrides, Source, SourceKind};
use crate::object::{ConfigMap, Document, NodeConfig, node_document};
use crate::row::ConfigEntry;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unread(String);

enum News {
    /// All of its objects; none for one that cannot be decoded.
    All(BTreeMap<String, Result<Document, String>>),
    One(String, Result<Document, String>),
    Gone(String),
    Failing(String),
    Working,
    Nothing,
}

#[derive(Default)]
struct State {
    text: String,
    documents: BTreeMap<String, Document>,
    /// Objects that are not valid: what they said before counts.
    faults: BTreeMap<String, String>,
    failing: Option<String>,
    is_listed: bool,
}

impl State {
    fn new(kind: &str, namespace: &str, name: &str) -> Self {
        let parts = [kind, namespace, name]
            .into_iter()
            .filter(|part| !part.is_empty());
        Self {
            text: parts.collect::<Vec<_>>().join("/"),
            ..Self::default()
        }
    }

    fn set(&mut self, name: String, document: Result<Document, String>) {
        match document {
            Ok(document) => {
                self.faults.remove(&name);
                self.documents.insert(name, document);
            }
            Err(error) => {
                tracing::warn!(source = self.text, object = name, error, "Invalid configuration");
                self.faults.insert(name, error);
            }
        }
    }

    fn apply(&mut self, news: News) {
        match news {
            News::All(all) => {
                self.documents.retain(|name, _| all.contains_key(name));
                self.faults.retain(|name, _| all.contains_key(name));
                for (name, document) in all {
                    self.set(name, document);
                }
                self.is_listed = true;
                self.failing = None;
            }
            News::One(name, document) => self.set(name, document),
            News::Gone(name) => {
                self.documents.remove(&name);
                self.faults.remove(&name);
            }
            News::Failing(error) => {
                tracing::warn!(source = self.text, error, "Cannot watch configuration");
                self.failing = Some(error);
            }
            News::Working => self.failing = None,
            News::Nothing => {}
        }
    }

    fn complaints(&self) -> impl Iterator<Item = String> {
        let failing = self.failing.iter().map(|error| format!("{}: {error}", self.text));
        let faults = self.faults.iter();
        failing.chain(faults.map(|(name, error)| format!("{} `{name}`: {error}", self.text)))
    }
}

/// Keeps the table in step with the sources.
pub(crate) struct Watch {
    db: Db,
    table: RwTable<ConfigEntry>,
    guard: Arc<InitGuard>,
    health: Health,
    overrides: Overrides,
    /// The sources in their order, then this node.
    states: Vec<State>,
    news: SelectAll<BoxStream<'static, (usize, News)>>,
}

/// What an object of a kind says.
type Read<T> = fn(&T) -> Result<Document, SelectorError>;

/// The priority of what a source says, as Cilium numbers it: the last source is the strongest, but weaker than the first for
/// keys that it may not set.
fn priority(sources: usize, index: usize, is_permitted: bool) -> usize {
    match index {
        0 => sources,
        _ if is_permitted => sources - index,
        _ => sources + index,
    }
}

fn stream<T: Resource>(index: usize, api: Api<T>, read: Read<T>) -> BoxStream<'static, (usize, News)> {
    let events = watcher(Arc::new(api), Backoff::default());
    events.map(move |event| (index, news(event, read))).boxed()
}

fn news<T: Resource>(event: WatcherEvent<T>, read: Read<T>) -> News {
    let document = |object: &T| read(object).map_err(|error| hive::error_chain(&error).to_string());
    match event {
        WatcherEvent::Replaced { items, invalid } => {
            let valid = items
                .iter()
                .map(|item| (item.metadata().name.to_string(), document(item)));
            let invalid = invalid.iter().map(|error| {
                let text = hive::error_chain(error).to_string();
                (error.object.name.to_string(), Err(text))
            });
            News::All(valid.chain(invalid).collect())
        }
        WatcherEvent::Object(ObjectEvent::Applied(item)) => {
            News::One(item.metadata().name.to_string(), document(&item))
        }
        WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => News::Gone(key.name.to_string()),
        WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
            let text = hive::error_chain(&error).to_string();
            News::One(error.object.name.to_string(), Err(text))
        }
        // A kind that the cluster does not have has no objects.
        WatcherEvent::Failing(error) if error.is_not_found() => News::All(BTreeMap::new()),
        WatcherEvent::Failing(error) => News::Failing(hive::error_chain(&*error).to_string()),
        WatcherEvent::Working => News::Working,
        WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => News::Nothing,
    }
}

impl Watch {
    pub(crate) fn new(
        client: Arc<dyn Client>,
        config: &Config,
        node: &str,
        (db, table, guard): (Db, RwTable<ConfigEntry>, Arc<InitGuard>),
        health: Health,
    ) -> Self {
        // Validation has rejected invalid ones.
        let sources = config.sources().unwrap_or_default();
        let named = |name: &str| FieldSelector::equal("metadata.name", name);
        let nodes = |index, name: &str| {
            let api = Api::<Node>::all(client.clone()).fields(named(name));
            stream(index, api, node_document)
        };
        let (mut states, mut streams) = (Vec::new(), SelectAll::new());
        for (index, source) in sources.iter().enumerate() {
            let Source {
                kind,
                namespace,
                name,
            } = source;
            let (text, stream) = match kind {
                SourceKind::ConfigMap => {
                    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                    let api = api.fields(named(name));
                    ("config-map", stream(index, api, ConfigMap::document))
                }
                SourceKind::CiliumNodeConfig => {
                    let api = Api::<NodeConfig>::namespaced(client.clone(), namespace);
                    let stream = match name.as_str() {
                        "" => stream(index, api, NodeConfig::selecting_document),
                        name => stream(index, api.fields(named(name)), NodeConfig::document),
                    };
                    ("cilium-node-config", stream)
                }
                SourceKind::Node if name.is_empty() => ("node", nodes(index, node)),
                SourceKind::Node => ("node", nodes(index, name)),
            };
            states.push(State::new(text, namespace, name));
            streams.push(stream);
        }
        // Labels of this node matter only to CiliumNodeConfigs that are not named.
        let mut own = State::new("node", "", node);
        if sources
            .iter()
            .any(|source| source.kind == SourceKind::CiliumNodeConfig && source.name.is_empty())
        {
            streams.push(nodes(sources.len(), node));
        } else {
            own.is_listed = true;
        }
        states.push(own);
        Self {
            db,
            table,
            guard,
            health,
            overrides: config.overrides().unwrap_or_default(),
            states,
            news: streams,
        }
    }

    pub(crate) async fn run(&mut self) -> Result<(), statedb::Error> {
        self.write()?;
        while let Some((index, news)) = self.news.next().await {
            self.states[index].apply(news);
            self.write()?;
        }
        Ok(())
    }

    fn rows(&self) -> BTreeMap<String, ConfigEntry> {
        let Some((own, sources)) = self.states.split_last() else {
            return BTreeMap::new();
        };
        let labels = own
            .documents
            .values()
            .next()
            .map_or_else(Labels::default, |node| node.labels.clone());
        let selects = |document: &Document| match &document.selector {
            None => true,
            Some(selector) => own.is_listed && selector.matches(&labels),
        };
        let mut rows: BTreeMap<String, ConfigEntry> = BTreeMap::new();
        for (index, state) in sources.iter().enumerate() {
            for (source, document) in state.documents.iter().filter(|(_, document)| selects(document)) {
                for (name, value) in &document.entries {
                    let is_permitted = self.overrides.permits(name);
                    let row = ConfigEntry {
                        name: name.clone(),
                        source: source.clone(),
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

    fn write(&mut self) -> Result<(), statedb::Error> {
        let rows = self.rows();
        let mut txn = self.db.write(&[&self.table]);
        let present: Vec<ConfigEntry> = self.table.all(&txn).map(|row| (**row).clone()).collect();
        for row in present.iter().filter(|row| !rows.contains_key(&row.id())) {
            self.table.delete(&mut txn, row)?;
        }
        let present: BTreeMap<String, ConfigEntry> = present.into_iter().map(|row| (row.id(), row)).collect();
        let count = rows.len();
        for (id, row) in rows {
            if present.get(&id) != Some(&row) {
                self.table.insert(&mut txn, row)?;
            }
        }
        let is_listed = self.states.iter().all(|state| state.is_listed);
        if is_listed {
            txn.initialized(&self.guard)?;
        }
        txn.commit();
        let complaints: Vec<String> = self.states.iter().flat_map(State::complaints).collect();
        if !complaints.is_empty() {
            let error = Unread(complaints.join("; "));
            self.health.degraded("Not all configuration can be read", &error);
        } else if is_listed {
            self.health
                .ok(format!("{count} entries of {} sources", self.states.len() - 1));
        }
        Ok(())
    }
}
