// SPDX-License-Identifier: Apache-2.0

//! Cell: publishes the addresses of endpoints.
//! Requires: clients of Kubernetes and of the key-value store, the tables of this crate. Provides: an [`Exported`].
//!
//! For a moment two endpoints may claim one address: a pod was replaced, and the address used again. The one that claimed
//! it first is published, by resource versions, as Cilium does. When it is gone, or leaves the address, the next one is. The
//! order in which their events arrive decides nothing.

mod row;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use hive::{Cell, Cfg, Member, Params, SpawnError};
use skep_clustermesh_types::{Kind, ValueError};
use skep_k8s_types::slim::Str;
use statedb::{Db, Obj, Snapshot, Table, WatchSet};

use crate::exporter::{Exported, Exporter, ExporterParams};
use crate::namespaces::{NamespaceRow, Namespaces};
use crate::parts::Faults;
use crate::settings::ExportSettings;
use crate::source::{Dirty, Followed, Source};

pub(crate) use row::EndpointRow;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module(
        "endpoint-sync",
        "Publishes addresses of endpoints for other clusters",
    )
    .provide(new)
    .run(start)
}

/// Publishes addresses.
struct EndpointExporter(Exporter);

fn new(params: ExporterParams) -> (Arc<EndpointExporter>, Member<Exported>) {
    let exporter = Exporter::new(Kind::Ips, params);
    let exported = exporter.exported();
    (Arc::new(EndpointExporter(exporter)), Member(exported))
}

#[derive(Params)]
struct StartParams {
    exporter: Arc<EndpointExporter>,
    settings: Cfg<ExportSettings>,
    namespaces: Table<NamespaceRow>,
    endpoints: Table<EndpointRow>,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        exporter,
        settings,
        namespaces,
        endpoints,
    } = params;
    exporter.0.start(move |db: &Db| {
        Some(Endpoints {
            namespaces: Namespaces::new(&namespaces, db, &settings),
            endpoints: Followed::new(&endpoints, db),
            claimed: HashMap::new(),
            faults: Faults::default(),
        })
    })
}

/// Addresses of endpoints of shared namespaces. Names are addresses.
struct Endpoints {
    namespaces: Namespaces,
    endpoints: Followed<EndpointRow>,
    /// The addresses that an endpoint claimed when it was last looked at.
    claimed: HashMap<Str, Box<[IpAddr]>>,
    faults: Faults,
}

fn text(ip: IpAddr) -> Str {
    Str::new(ip.to_string())
}

impl Endpoints {
    /// Who owns an address: of those in shared namespaces the one that claimed it first.
    fn owner<'a>(&'a self, snapshot: &'a Snapshot, ip: IpAddr) -> Option<&'a Obj<EndpointRow>> {
        let rows = self
            .endpoints
            .table
            .list(snapshot, EndpointRow::BY_ADDRESS.key(&ip));
        let claims = rows.filter_map(|row| {
            let shared = self.namespaces.shared_since(&row.namespace)?;
            Some(((shared, row.claimed(ip), &row.name), row))
        });
        claims.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, row)| row)
    }
}

impl Source for Endpoints {
    fn changed(&mut self, snapshot: &Snapshot, dirty: &mut Dirty) {
        for namespace in self.namespaces.changed(snapshot, dirty) {
            let endpoints = &self.endpoints.table;
            for row in endpoints.list(snapshot, EndpointRow::BY_NAMESPACE.key(&namespace)) {
                dirty.names.extend(row.addresses().map(text));
            }
        }
        let Self {
            endpoints,
            claimed,
            faults,
            ..
        } = self;
        endpoints.changed(snapshot, dirty, |dirty, row, is_deleted| {
            faults.note(&row.name, row.fault.as_deref().filter(|_| !is_deleted));
            let before = if is_deleted {
                claimed.remove(&row.name)
            } else {
                claimed.insert(row.name.clone(), row.addresses().collect())
            };
            dirty.names.extend(before.into_iter().flatten().map(text));
            dirty.names.extend(row.addresses().map(text));
        });
        if dirty.all {
            let rows = || endpoints.table.all(snapshot);
            *claimed = rows()
                .map(|row| (row.name.clone(), row.addresses().collect()))
                .collect();
            faults.clear();
            for row in rows() {
                faults.note(&row.name, row.fault.as_deref());
            }
        }
    }

    fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.namespaces.watch(snapshot, watches);
        self.endpoints.watch(snapshot, watches);
    }

    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.namespaces.is_complete(snapshot) && self.endpoints.is_complete(snapshot)
    }

    fn names(&self, snapshot: &Snapshot) -> BTreeSet<Str> {
        let rows = self.endpoints.table.all(snapshot);
        rows.flat_map(|row| row.addresses().map(text)).collect()
    }

    fn value(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Vec<u8>>, ValueError> {
        let owner = name.parse().ok().and_then(|ip| {
            let owner = self.owner(snapshot, ip)?;
            Some(owner.value(ip).encode())
        });
        owner.transpose()
    }

    fn faults(&self) -> Vec<String> {
        self.faults.texts()
    }
}
