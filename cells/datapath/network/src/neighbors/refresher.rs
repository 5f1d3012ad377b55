// SPDX-License-Identifier: Apache-2.0

//! Marks neighbours that the kernel no longer confirms.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use hive::JobCtx;
use skep_node_local::{Neighbor, NeighborKey};
use statedb::{
    Db, RwTable, Table,
    reconciler::{Status, StatusKind},
};

use super::{
    NeighborMetrics,
    row::{DesiredNeighbor, DesiredNeighborKey},
};

/// Shortest time between two rounds.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Refresher {
    pub(super) db: Db,
    pub(super) desired: RwTable<DesiredNeighbor>,
    pub(super) kernel: Table<Neighbor>,
    pub(super) metrics: Arc<NeighborMetrics>,
}

/// Whether a neighbour is ours and has not been confirmed lately.
fn is_stale(neighbor: &Neighbor) -> bool {
    neighbor.flags & Neighbor::EXT_LEARNED != 0
        && neighbor.ext_flags & Neighbor::EXT_MANAGED == 0
        && neighbor.state & Neighbor::STALE != 0
}

impl Refresher {
    pub(super) async fn run(&self, _: &JobCtx) -> Result<(), statedb::Error> {
        let mut changes = self.kernel.follow(&self.db);
        loop {
            let snapshot = self.db.read();
            let changed = self.kernel.table_watch(&snapshot);
            let keys: BTreeSet<NeighborKey> = changes
                .next(&snapshot)
                .filter_map(|change| change.object().map(|neighbor| neighbor.key()))
                .collect();
            let stale = keys.into_iter().filter(|key| {
                let present = self.kernel.get(&snapshot, Neighbor::BY_ID.key(key));
                present.is_none_or(|neighbor| is_stale(neighbor))
            });
            self.refresh(stale.collect())?;
            changed.closed().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn refresh(&self, stale: Vec<NeighborKey>) -> Result<(), statedb::Error> {
        let snapshot = self.db.read();
        let rows: Vec<_> = stale
            .into_iter()
            .filter_map(|NeighborKey { link_index: link, ip }| {
                let key = DesiredNeighborKey { link, ip };
                self.desired.get(&snapshot, DesiredNeighbor::BY_ID.key(&key))
            })
            .filter(|row| row.status.kind == StatusKind::Done)
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let mut txn = self.db.write(&[&self.desired]);
        for row in rows {
            let mut refreshed = (**row).clone();
            refreshed.status = Status::refreshing_at(row.status.updated_at);
            // Not if it has changed meanwhile: it is pending then.
            if self
                .desired
                .compare_and_swap(&mut txn, row.revision(), refreshed)
                .is_ok()
            {
                self.metrics.refreshes.inc();
            }
        }
        txn.commit();
        Ok(())
    }
}
