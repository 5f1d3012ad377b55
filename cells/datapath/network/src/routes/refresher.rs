// SPDX-License-Identifier: Apache-2.0

//! Marks routes that others have changed or deleted.

use std::{collections::HashSet, time::Duration};

use hive::JobCtx;
use skep_node_local::Route;
use statedb::{
    Db, RwTable, Snapshot, Table,
    reconciler::{Status, StatusKind},
};

use super::row::{DesiredRoute, Place, kernel_priority};

/// Shortest time between two rounds.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Refresher {
    pub(super) db: Db,
    pub(super) table: RwTable<DesiredRoute>,
    pub(super) kernel: Table<Route>,
}

impl Refresher {
    pub(super) async fn run(&self, _: &JobCtx) -> Result<(), statedb::Error> {
        let mut changes = self.kernel.follow(&self.db);
        loop {
            let snapshot = self.db.read();
            let changed = self.kernel.table_watch(&snapshot);
            let places: HashSet<Place> = changes
                .next(&snapshot)
                .filter_map(|change| change.object().map(|route| place(route)))
                .collect();
            if !places.is_empty() {
                self.refresh(&snapshot, &places)?;
            }
            changed.closed().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Marks the rows of places where the kernel has another route, or none.
    fn refresh(&self, snapshot: &Snapshot, places: &HashSet<Place>) -> Result<(), statedb::Error> {
        let kernel: Vec<_> = self
            .kernel
            .all(snapshot)
            .filter(|route| places.contains(&place(route)))
            .collect();
        let wanted = |row: &DesiredRoute| (row.table, row.prefix, kernel_priority(&row.place()));
        let stale: Vec<_> = self
            .table
            .all(snapshot)
            .filter(|row| {
                row.selected && row.status.kind == StatusKind::Done && places.contains(&wanted(row))
            })
            .filter(|row| {
                let mut there = kernel.iter().filter(|route| place(route) == wanted(row));
                !there.any(|route| row.is_realized_by(route))
            })
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        let mut txn = self.db.write(&[&self.table]);
        for row in stale {
            let mut refreshed = (**row).clone();
            refreshed.status = Status::refreshing_at(row.status.updated_at);
            // Not if it has changed meanwhile: it is pending then.
            let _ = self.table.compare_and_swap(&mut txn, row.revision(), refreshed);
        }
        txn.commit();
        Ok(())
    }
}

fn place(route: &Route) -> Place {
    (route.table, route.dst, route.priority)
}
