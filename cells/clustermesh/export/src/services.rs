// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes global services with their backends.
//! Requires: clients of Kubernetes and of the key-value store, the tables of this crate. Provides: an [`Exported`].

mod inputs;
mod row;
mod slice_row;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use hive::{Cell, Cfg, Member, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::{ClusterInfo, Kind, ServiceSettings, ValueError};
use skep_k8s_types::slim::Str;
use statedb::{Db, Snapshot, WatchSet};

use crate::exporter::{Exported, Exporter, ExporterParams};
use crate::parts::Faults;
use crate::settings::ExportSettings;
use crate::source::{Dirty, Source};

pub(crate) use inputs::{ServiceInputs, ServiceTables};
pub(crate) use row::ServiceRow;
pub(crate) use slice_row::SliceRow;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("service-sync", "Publishes global services for other clusters")
        .provide(new)
        .run(start)
}

/// Publishes global services.
struct ServiceExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<ServiceExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::Services, params);
    let exported = exporter.exported();
    (Arc::new(ServiceExporter(exporter)), Member(exported))
}

#[derive(Params)]
struct StartParams {
    exporter: Arc<ServiceExporter>,
    settings: Cfg<ExportSettings>,
    mode: Cfg<ServiceSettings>,
    cluster: Cfg<ClusterSettings>,
    tables: ServiceTables,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        exporter,
        settings,
        mode,
        cluster,
        tables,
    } = params;
    let is_enabled = mode.clustermesh_service_v2.published().has_services();
    let cluster = cluster.info();
    exporter
        .0
        .start(move |db| is_enabled.then(|| Services::new(&tables, db, &settings, cluster.clone())))
}

/// Services with the backends of their slices.
struct Services {
    cluster: ClusterInfo,
    inputs: ServiceInputs,
    /// Services of slices as they were last looked at.
    services_of: HashMap<Str, Str>,
    /// Of services and of slices: a service and a slice may have the same name.
    faults: [Faults; 2],
}

impl Services {
    fn new(tables: &ServiceTables, db: &Db, settings: &ExportSettings, cluster: ClusterInfo) -> Self {
        Self {
            cluster,
            inputs: ServiceInputs::new(tables, db, settings),
            services_of: HashMap::new(),
            faults: Default::default(),
        }
    }
}

impl Source for Services {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        let Self {
            inputs,
            services_of,
            faults: [of_services, of_slices],
            ..
        } = self;
        let ServiceInputs {
            namespaces,
            services,
            slices,
        } = inputs;
        for namespace in namespaces.changed(snapshot, dirty) {
            let rows = services
                .table
                .list(snapshot, ServiceRow::BY_NAMESPACE.key(&namespace));
            dirty.names.extend(rows.map(|row| row.name.clone()));
        }
        services.changed(snapshot, dirty, |dirty, row, is_deleted| {
            of_services.note(&row.name, row.fault.as_deref().filter(|_| !is_deleted));
            dirty.names.insert(row.name.clone());
        });
        slices.changed(snapshot, dirty, |dirty, row, is_deleted| {
            of_slices.note(&row.name, row.fault.as_deref().filter(|_| !is_deleted));
            let before = if is_deleted {
                services_of.remove(&row.name)
            } else {
                services_of.insert(row.name.clone(), row.service.clone())
            };
            dirty.names.extend(before);
            dirty.names.insert(row.service.clone());
        });
        if dirty.all {
            let rows = || slices.table.all(snapshot);
            *services_of = rows()
                .map(|row| (row.name.clone(), row.service.clone()))
                .collect();
            of_services.clear();
            for row in services.table.all(snapshot) {
                of_services.note(&row.name, row.fault.as_deref());
            }
            of_slices.clear();
            for row in rows() {
                of_slices.note(&row.name, row.fault.as_deref());
            }
        }
    }

    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.inputs.watch(snapshot, watches);
    }

    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.inputs.is_complete(snapshot)
    }

    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str> {
        let rows = self.inputs.services.table.all(snapshot);
        rows.map(|row| row.name.clone()).collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let ServiceInputs {
            namespaces,
            services,
            slices,
        } = &self.inputs;
        let Some(row) = services.table.get(snapshot, ServiceRow::BY_NAME.key(name)) else {
            return Ok(None);
        };
        if !row.is_shared || !namespaces.is_shared(&row.namespace) {
            return Ok(None);
        }
        let mut service = row.value(&self.cluster);
        for slice in slices.table.list(snapshot, SliceRow::BY_SERVICE.key(name)) {
            slice.add_backends(&mut service)?;
        }
        service.encode().map(Some)
    }

    fn faults(&self) -> Vec<String> {
        self.faults.iter().flat_map(Faults::texts).collect()
    }
}
