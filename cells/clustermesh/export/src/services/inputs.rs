// SPDX-License-Identifier: Apache-2.0

//! What services and their slices are published by: three tables, each with how far its changes are handled.

use hive::Params;
use statedb::{Db, Snapshot, Table, WatchSet};

use super::{ServiceRow, SliceRow};
use crate::namespaces::{NamespaceRow, Namespaces};
use crate::settings::ExportSettings;
use crate::source::Followed;

/// Tables of which services are made.
#[derive(Params, Clone)]
pub(crate) struct ServiceTables {
    pub(crate) namespaces: Table<NamespaceRow>,
    pub(crate) services: Table<ServiceRow>,
    pub(crate) slices: Table<SliceRow>,
}

/// The tables as one exporter follows them.
pub(crate) struct ServiceInputs {
    pub(crate) namespaces: Namespaces,
    pub(crate) services: Followed<ServiceRow>,
    pub(crate) slices: Followed<SliceRow>,
}

impl ServiceInputs {
    pub(crate) fn new(tables: &ServiceTables, db: &Db, settings: &ExportSettings) -> Self {
        Self {
            namespaces: Namespaces::new(&tables.namespaces, db, settings),
            services: Followed::new(&tables.services, db),
            slices: Followed::new(&tables.slices, db),
        }
    }

    pub(crate) fn watch(&self, snapshot: &Snapshot, watches: &mut WatchSet) {
        self.namespaces.watch(snapshot, watches);
        self.services.watch(snapshot, watches);
        self.slices.watch(snapshot, watches);
    }

    /// Whether all three tables have their first lists.
    pub(crate) fn is_complete(&self, snapshot: &Snapshot) -> bool {
        self.namespaces.is_complete(snapshot)
            && self.services.is_complete(snapshot)
            && self.slices.is_complete(snapshot)
    }
}
