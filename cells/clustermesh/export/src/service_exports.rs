// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes ServiceExports with their services, if the MCS-API is enabled.
//! Requires: clients of Kubernetes and of the key-value store, the tables of this crate. Provides: an [`Exported`].

mod row;

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::{Cell, Cfg, Member, Params, SpawnError};
use skep_clustermesh_types::{Kind, ServiceExport, ValueError};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_types::slim::Str;
use statedb::{Db, Snapshot, Table, WatchSet};

use crate::exporter::{Exported, Exporter, ExporterParams};
use crate::namespaces::{NamespaceRow, Namespaces};
use crate::services::ServiceRow;
use crate::settings::ExportSettings;
use crate::source::{Dirty, Followed, Source};

pub(crate) use row::ServiceExportRow;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module(
        "service-export-sync",
        "Publishes ServiceExports for other clusters",
    )
    .provide(new)
    .run(start)
}

/// Publishes ServiceExports.
struct ServiceExportExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<ServiceExportExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::ServiceExports, params);
    let exported = exporter.exported();
    (Arc::new(ServiceExportExporter(exporter)), Member(exported))
}

#[derive(Params)]
struct StartParams {
    exporter: Arc<ServiceExportExporter>,
    settings: Cfg<ExportSettings>,
    crds: Cfg<CrdConfig>,
    namespaces: Table<NamespaceRow>,
    services: Table<ServiceRow>,
    exports: Table<ServiceExportRow>,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        exporter,
        settings,
        crds,
        namespaces,
        services,
        exports,
    } = params;
    let is_enabled = crds.clustermesh_enable_mcs_api;
    exporter.0.start(move |db: &Db| {
        is_enabled.then(|| ServiceExports {
            namespaces: Namespaces::new(&namespaces, db, &settings),
            services: Followed::new(&services, db),
            exports: Followed::new(&exports, db),
        })
    })
}

/// ServiceExports of shared namespaces that have a service.
struct ServiceExports {
    namespaces: Namespaces,
    services: Followed<ServiceRow>,
    exports: Followed<ServiceExportRow>,
}

impl Source for ServiceExports {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        for namespace in self.namespaces.changed(snapshot, dirty) {
            let exports = &self.exports.table;
            let rows = exports.list(snapshot, ServiceExportRow::BY_NAMESPACE.key(&namespace));
            dirty.names.extend(rows.map(|row| row.name.clone()));
        }
        self.services.changed(snapshot, dirty, |dirty, row, _| {
            dirty.names.insert(row.name.clone());
        });
        self.exports.changed(snapshot, dirty, |dirty, row, _| {
            dirty.names.insert(row.name.clone());
        });
    }

    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.namespaces.watch(snapshot, watches);
        self.services.watch(snapshot, watches);
        self.exports.watch(snapshot, watches);
    }

    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.namespaces.is_complete(snapshot)
            && self.services.is_complete(snapshot)
            && self.exports.is_complete(snapshot)
    }

    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str> {
        let rows = self.exports.table.all(snapshot);
        rows.map(|row| row.name.clone()).collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let export = self
            .exports
            .table
            .get(snapshot, ServiceExportRow::BY_NAME.key(name));
        let service = self.services.table.get(snapshot, ServiceRow::BY_NAME.key(name));
        let (Some(export), Some(service)) = (export, service) else {
            return Ok(None);
        };
        let Some(value) = service
            .export
            .as_ref()
            .filter(|_| self.namespaces.is_shared(&export.namespace))
        else {
            return Ok(None);
        };
        let mut value = ServiceExport::clone(value);
        value.labels.clone_from(&export.labels);
        value.annotations.clone_from(&export.annotations);
        value.export_creation_timestamp = export.created;
        value.encode().map(Some)
    }
}
