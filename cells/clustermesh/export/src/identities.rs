// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes CiliumIdentities.
//! Requires: clients of Kubernetes and of the key-value store, the tables of this crate. Provides: an [`Exported`].

mod row;

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::{Cell, Cfg, Member, Params, SpawnError};
use skep_clustermesh_types::{Kind, ValueError};
use skep_k8s_types::slim::Str;
use statedb::{Db, Snapshot, Table, WatchSet};

use crate::exporter::{Exported, Exporter, ExporterParams};
use crate::namespaces::{NamespaceRow, Namespaces};
use crate::settings::ExportSettings;
use crate::source::{Dirty, Followed, Source};

pub(crate) use row::IdentityRow;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("identity-sync", "Publishes identities for other clusters")
        .provide(new)
        .run(start)
}

/// Publishes identities.
struct IdentityExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<IdentityExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::Identities, params);
    let exported = exporter.exported();
    (Arc::new(IdentityExporter(exporter)), Member(exported))
}

#[derive(Params)]
struct StartParams {
    exporter: Arc<IdentityExporter>,
    settings: Cfg<ExportSettings>,
    namespaces: Table<NamespaceRow>,
    identities: Table<IdentityRow>,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        exporter,
        settings,
        namespaces,
        identities,
    } = params;
    exporter.0.start(move |db: &Db| {
        Some(Identities {
            namespaces: Namespaces::new(&namespaces, db, &settings),
            identities: Followed::new(&identities, db),
        })
    })
}

struct Identities {
    namespaces: Namespaces,
    identities: Followed<IdentityRow>,
}

impl Source for Identities {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        for namespace in self.namespaces.changed(snapshot, dirty) {
            let identities = &self.identities.table;
            let rows = identities.list(snapshot, IdentityRow::BY_NAMESPACE.key(&namespace));
            dirty.names.extend(rows.map(|row| row.name.clone()));
        }
        self.identities.changed(snapshot, dirty, |dirty, row, _| {
            dirty.names.insert(row.name.clone());
        });
    }

    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.namespaces.watch(snapshot, watches);
        self.identities.watch(snapshot, watches);
    }

    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.namespaces.is_complete(snapshot) && self.identities.is_complete(snapshot)
    }

    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str> {
        let rows = self.identities.table.all(snapshot);
        rows.map(|row| row.name.clone()).collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let row = self
            .identities
            .table
            .get(snapshot, IdentityRow::BY_NAME.key(name));
        let row = row.filter(|row| self.namespaces.is_shared(&row.namespace));
        Ok(row.map(|row| row.labels.as_bytes().to_vec()))
    }
}
