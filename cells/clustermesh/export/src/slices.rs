// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes the endpoint slices of global services.
//! Requires: clients of Kubernetes and of the key-value store, the tables of this crate. Provides: an [`Exported`].

use std::collections::BTreeSet;
use std::sync::Arc;

use hive::{Cell, Cfg, Member, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::{ClusterInfo, Kind, ServiceSettings, ValueError};
use skep_k8s_types::slim::Str;
use statedb::{Db, Snapshot, WatchSet};

use crate::exporter::{Exported, Exporter, ExporterParams};
use crate::parts::Faults;
use crate::services::{ServiceInputs, ServiceRow, ServiceTables, SliceRow};
use crate::settings::ExportSettings;
use crate::source::{Dirty, Source};

hive::catalogue!(cell);

/// Publishes the endpoint slices of global services.
pub fn cell() -> Cell {
    Cell::module(
        "endpointslice-export-sync",
        "Publishes endpoint slices of global services for other clusters",
    )
    .provide(new)
    .run(start)
}

/// Publishes endpoint slices.
struct SliceExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<SliceExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::EndpointSlices, params);
    let exported = exporter.exported();
    (Arc::new(SliceExporter(exporter)), Member(exported))
}

#[derive(Params)]
struct StartParams {
    exporter: Arc<SliceExporter>,
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
    let is_enabled = mode.clustermesh_service_v2.published().has_endpoint_slices();
    let cluster = cluster.info();
    exporter
        .0
        .start(move |db| is_enabled.then(|| Slices::new(&tables, db, &settings, cluster.clone())))
}

struct Slices {
    cluster: ClusterInfo,
    inputs: ServiceInputs,
    faults: Faults,
}

impl Slices {
    fn new(tables: &ServiceTables, db: &Db, settings: &ExportSettings, cluster: ClusterInfo) -> Self {
        Self {
            cluster,
            inputs: ServiceInputs::new(tables, db, settings),
            faults: Faults::default(),
        }
    }
}

impl Source for Slices {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        let ServiceInputs {
            namespaces,
            services,
            slices,
        } = &mut self.inputs;
        let faults = &mut self.faults;
        let table = &slices.table;
        let slices_of = |service: &str| {
            let rows = table.list(snapshot, SliceRow::BY_SERVICE.key(service));
            rows.map(|row| row.name.clone())
        };
        for namespace in namespaces.changed(snapshot, dirty) {
            for row in services
                .table
                .list(snapshot, ServiceRow::BY_NAMESPACE.key(&namespace))
            {
                dirty.names.extend(slices_of(&row.name));
            }
        }
        services.changed(snapshot, dirty, |dirty, row, _| {
            dirty.names.extend(slices_of(&row.name));
        });
        slices.changed(snapshot, dirty, |dirty, row, is_deleted| {
            faults.note(&row.name, row.fault.as_deref().filter(|_| !is_deleted));
            dirty.names.insert(row.name.clone());
        });
        if dirty.all {
            faults.clear();
            for row in slices.table.all(snapshot) {
                faults.note(&row.name, row.fault.as_deref());
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
        let rows = self.inputs.slices.table.all(snapshot);
        rows.map(|row| row.name.clone()).collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let ServiceInputs {
            namespaces,
            services,
            slices,
        } = &self.inputs;
        let Some(row) = slices.table.get(snapshot, SliceRow::BY_NAME.key(name)) else {
            return Ok(None);
        };
        let service = services
            .table
            .get(snapshot, ServiceRow::BY_NAME.key(&row.service));
        let is_published = row.is_ipv4.is_some()
            && service.is_some_and(|service| service.is_shared)
            && namespaces.is_shared(&row.namespace);
        if !is_published {
            return Ok(None);
        }
        let mut slice = row.message()?;
        slice.cluster = Some(self.cluster.name.to_string());
        slice.cluster_id = Some(self.cluster.id);
        Ok(Some(slice.encode_value()))
    }

    fn faults(&self) -> Vec<String> {
        self.faults.texts()
    }
}
