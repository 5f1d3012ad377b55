// SPDX-License-Identifier: Apache-2.0

//! Which namespaces are shared with other clusters.

use std::collections::{BTreeSet, HashMap};

use skep_clustermesh_types::annotation::{GLOBAL_NAMESPACE, is_global_namespace};
use skep_k8s_types::slim::{Namespace, Str};
use statedb::{Db, Index, Row, Snapshot, Table, WatchSet};

use crate::settings::ExportSettings;
use crate::source::{Dirty, Followed};

/// Row of `mesh-namespaces`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceRow {
    pub(crate) name: Str,
    /// Value of the annotation that decides.
    pub(crate) global: Option<Str>,
}

impl NamespaceRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    pub(crate) fn new(namespace: &Namespace) -> Self {
        let metadata = &namespace.metadata;
        Self {
            name: metadata.name.clone(),
            global: metadata.annotations.get(GLOBAL_NAMESPACE).map(Str::new),
        }
    }
}

impl Row for NamespaceRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Global"]
    }

    fn cells(&self) -> Vec<String> {
        let global = self.global.as_deref().unwrap_or_default();
        vec![self.name.to_string(), global.to_owned()]
    }
}

/// The namespaces. One that is not known is not shared: the objects in it are looked at again when it is.
pub(crate) struct Namespaces {
    rows: Followed<NamespaceRow>,
    default: bool,
    /// By name: since which turn a namespace is shared; `None`: it is not.
    shared: HashMap<Str, Option<Turn>>,
    turns: Turn,
}

/// How often namespaces had become shared before; 0 for those that have been since they are known.
pub(crate) type Turn = u64;

impl Namespaces {
    pub(crate) fn new(table: &Table<NamespaceRow>, db: &Db, settings: &ExportSettings) -> Self {
        Self {
            rows: Followed::new(table, db),
            default: settings.clustermesh_default_global_namespace,
            shared: HashMap::new(),
            turns: 0,
        }
    }

    /// The namespaces that are shared now and were not, or the other way round.
    pub(crate) fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) -> BTreeSet<Str> {
        let mut changed = BTreeSet::new();
        let Self {
            rows,
            default,
            shared,
            turns,
        } = self;
        rows.changed(snapshot, dirty, |_, row, is_deleted| {
            let before = shared.get(&row.name).copied();
            if is_deleted {
                shared.remove(&row.name);
            } else {
                shared.insert(row.name.clone(), turn(before, row, *default, turns));
            }
            let is_shared = |turn: Option<Option<Turn>>| turn.map(|turn| turn.is_some());
            if is_shared(before) != is_shared(shared.get(&row.name).copied()) {
                changed.insert(row.name.clone());
            }
        });
        if dirty.all {
            let before = std::mem::take(shared);
            for row in rows.table.all(snapshot) {
                let before = before.get(&row.name).copied();
                shared.insert(row.name.clone(), turn(before, row, *default, turns));
            }
        }
        changed
    }

    pub(crate) fn is_shared(&self, namespace: &str) -> bool {
        self.shared_since(namespace).is_some()
    }

    /// Since which turn a namespace is shared: what is in it is published as if it had been made then.
    pub(crate) fn shared_since(&self, namespace: &str) -> Option<Turn> {
        self.shared.get(namespace).copied().flatten()
    }

    pub(crate) fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.rows.watch(snapshot, watches);
    }

    pub(crate) fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.rows.is_complete(snapshot)
    }
}

/// The turn of a namespace, by what it was before.
fn turn(before: Option<Option<Turn>>, row: &NamespaceRow, default: bool, turns: &mut Turn) -> Option<Turn> {
    if !is_global_namespace(row.global.as_deref(), default) {
        return None;
    }
    Some(match before {
        None => 0,
        Some(Some(turn)) => turn,
        Some(None) => {
            *turns += 1;
            *turns
        }
    })
}
