// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes CiliumNodes.
//! Requires: clients of Kubernetes and of the key-value store, the tables of this crate. Provides: an [`Exported`].

mod row;

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::{Cell, Member, SpawnError};
use skep_clustermesh_types::{Kind, ValueError};
use skep_k8s_types::slim::Str;
use statedb::{Db, Snapshot, Table, WatchSet};

use crate::exporter::{Exported, Exporter, ExporterParams};
use crate::source::{Dirty, Followed, Source};

pub(crate) use row::NodeRow;

hive::catalogue!(cell);

/// Publishes CiliumNodes.
pub fn cell() -> Cell {
    Cell::module("node-sync", "Publishes nodes for other clusters")
        .provide(new)
        .run(start)
}

/// Publishes nodes.
struct NodeExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<NodeExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::Nodes, params);
    let exported = exporter.exported();
    (Arc::new(NodeExporter(exporter)), Member(exported))
}

fn start(exporter: Arc<NodeExporter>, nodes: Table<NodeRow>) -> Result<(), SpawnError> {
    exporter.0.start(move |db| Some(Nodes::new(&nodes, db)))
}

struct Nodes(Followed<NodeRow>);

impl Nodes {
    fn new(nodes: &Table<NodeRow>, db: &Db) -> Self {
        Self(Followed::new(nodes, db))
    }
}

impl Source for Nodes {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        self.0.changed(snapshot, dirty, |dirty, row, _| {
            dirty.names.insert(row.name.clone());
        });
    }

    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.0.watch(snapshot, watches);
    }

    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.0.is_complete(snapshot)
    }

    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str> {
        self.0.table.all(snapshot).map(|row| row.name.clone()).collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let row = self.0.table.get(snapshot, NodeRow::BY_NAME.key(name));
        row.map(|row| row.value.encode()).transpose()
    }
}
