// SPDX-License-Identifier: Apache-2.0

//! Addresses of this node → `cilium_lxc`: programs leave packets to them to the kernel.
//!
//! They are written when the addresses change, and once a minute what is missing: an entry that was deleted by hand, or that
//! an endpoint with an address of the node had until it was deleted.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hive::JobCtx;
use skep_bpf_maps::endpoint::{LxcKey, LxcValue, lxc_flags};
use skep_bpf_sys::MapError;
use skep_datapath_maps::transaction::WriteError;
use skep_node_local::NodeAddress;
use statedb::{Db, ReadTxn, Table};

use crate::{EndpointMaps, maps::LxcMap};

/// Time between two comparisons with the map.
const RESYNC: Duration = Duration::from_secs(60);

/// Writes the addresses of the node.
pub(crate) struct HostAddresses {
    pub(crate) db: Db,
    pub(crate) addresses: Table<NodeAddress>,
    pub(crate) maps: Arc<EndpointMaps>,
}

/// Why addresses of the node are not in the map.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An entry was not deleted or read.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl HostAddresses {
    /// Keeps the map as the table is, until cancelled.
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), HostError> {
        self.addresses.wait_initialized(&self.db).await;
        loop {
            let snapshot = self.db.read();
            let changed = self.addresses.table_watch(&snapshot);
            let count = self.write(&snapshot)?;
            drop(snapshot);
            cx.health.ok(format!("{count} addresses"));
            // Whichever comes first.
            let _ = tokio::time::timeout(RESYNC, changed.closed()).await;
        }
    }

    /// Makes the host's entries those of the table; returns how many there are.
    pub(crate) fn write(&self, txn: &impl ReadTxn) -> Result<usize, HostError> {
        let lxc: &LxcMap = &self.maps.lxc;
        let value = LxcValue {
            flags: lxc_flags::HOST,
            ..LxcValue::default()
        };
        let present: BTreeMap<LxcKey, LxcValue> = lxc.entries()?.into_iter().collect();
        let wanted: Vec<LxcKey> = self.addresses.all(txn).map(|row| LxcKey::new(row.addr)).collect();
        for key in &wanted {
            // An endpoint may have an address of the node: then it is the endpoint's.
            let is_kept = |found: &LxcValue| found.flags & lxc_flags::HOST == 0 || *found == value;
            if !present.get(key).is_some_and(is_kept) {
                lxc.update(key, &value)
                    .map_err(|error| WriteError::new(error, lxc.max_entries()))?;
            }
        }
        for (key, value) in present {
            if value.flags & lxc_flags::HOST != 0 && !wanted.contains(&key) {
                lxc.delete(&key)?;
            }
        }
        Ok(wanted.len())
    }
}
