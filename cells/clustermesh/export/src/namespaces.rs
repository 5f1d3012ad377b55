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
    shared: HashMap<Str, bool>,
}

impl Namespaces {
    pub(crate) fn new(table: &Table<NamespaceRow>, db: &Db, settings: &ExportSettings) -> Self {
        Self {
            rows: Followed::new(table, db),
            default: settings.clustermesh_default_global_namespace,
            shared: HashMap::new(),
        }
    }

    /// The namespaces that are shared now and were not, or the other way round.
    pub(crate) fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) -> BTreeSet<Str> {
        let mut changed = BTreeSet::new();
        let Self {
            rows,
            default,
            shared,
        } = self;
        rows.changed(snapshot, dirty, |_, row, is_deleted| {
            let before = if is_deleted {
                shared.remove(&row.name)
            } else {
                let is_shared = is_global_namespace(row.global.as_deref(), *default);
                let before = shared.insert(row.name.clone(), is_shared);
                if before == Some(is_shared) {
                    return;
                }
                before
            };
            if !is_deleted || before.is_some() {
                changed.insert(row.name.clone());
            }
        });
        if dirty.all {
            shared.clear();
            for row in rows.table.all(snapshot) {
                shared.insert(
                    row.name.clone(),
                    is_global_namespace(row.global.as_deref(), *default),
                );
            }
        }
        changed
    }

    pub(crate) fn is_shared(&self, namespace: &str) -> bool {
        self.shared.get(namespace).copied().unwrap_or_default()
    }

    pub(crate) fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.rows.watch(snapshot, watches);
    }

    pub(crate) fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.rows.is_complete(snapshot)
    }
}
