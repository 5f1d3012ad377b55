// SPDX-License-Identifier: Apache-2.0

//! Cell: the monitor as a part of the agent's status.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Member};
use skep_base_api::StatusProbe;
use skep_base_api_types::{MonitorStatus, Status, StatusResponse};

use crate::Monitor;

hive::catalogue!(cell);

/// Part `nodeMonitor` of the agent's status; absent without listeners.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("monitor-status", "The monitor in the status of the agent").provide(probe)
}

struct Rings(Arc<Monitor>);

#[async_trait]
impl StatusProbe for Rings {
    fn name(&self) -> &'static str {
        "node-monitor"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        response.node_monitor = self.0.rings().map(|rings| MonitorStatus {
            cpus: rings.cpus as u64,
            npages: rings.pages as u64,
            pagesize: rings.page_size as u64,
            lost: rings.lost,
            // Rings have samples and losses, and nothing else.
            unknown: 0,
        });
        None
    }
}

fn probe(monitor: Arc<Monitor>) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Rings(monitor)))
}
