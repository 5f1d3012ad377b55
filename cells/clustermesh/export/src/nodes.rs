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
use crate::parts::Faults;
use crate::source::{Dirty, Followed, Source};

pub(crate) use row::NodeRow;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("node-sync", "Publishes nodes for other clusters")
        .provide(new)
        .run(start)
}

struct NodeExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<NodeExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::Nodes, params);
    let exported = exporter.exported();
    (Arc::new(NodeExporter(exporter)), Member(exported))
}

fn start(exporter: Arc<NodeExporter>, nodes: Table<NodeRow>) -> Result<(), SpawnError> {
    exporter.0.start(move |db| Some(Nodes::new(&nodes, db)))
}

struct Nodes {
    nodes: Followed<NodeRow>,
    faults: Faults,
}

impl Nodes {
    fn new(nodes: &Table<NodeRow>, db: &Db) -> Self {
        Self {
            nodes: Followed::new(nodes, db),
            faults: Faults::default(),
        }
    }
}

impl Source for Nodes {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        let Self { nodes, faults } = self;
        nodes.changed(snapshot, dirty, |dirty, row, is_deleted| {
            faults.note(&row.name, row.fault.as_deref().filter(|_| !is_deleted));
            dirty.names.insert(row.name.clone());
        });
        if dirty.all {
            faults.clear();
            for row in nodes.table.all(snapshot) {
                faults.note(&row.name, row.fault.as_deref());
            }
        }
    }

    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.nodes.watch(snapshot, watches);
    }

    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.nodes.is_complete(snapshot)
    }

    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str> {
        self.nodes
            .table
            .all(snapshot)
            .map(|row| row.name.clone())
            .collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let row = self.nodes.table.get(snapshot, NodeRow::BY_NAME.key(name));
        row.map(|row| row.value.encode()).transpose()
    }

    fn faults(&self) -> Vec<String> {
        self.faults.texts()
    }
}
