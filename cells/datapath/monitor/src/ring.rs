// SPDX-License-Identifier: Apache-2.0

//! Reads the event rings while the monitor has listeners.

use std::{path::Path, sync::Arc};

use hive::JobCtx;
use skep_datapath_rings::{Event, RingError, Rings};

use crate::Monitor;

/// Pages of the ring of a CPU.
const PAGES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingStatus {
    pub cpus: usize,
    pub pages: usize,
    pub page_size: usize,
    /// Events that were lost since a ring was full, since the agent started.
    pub lost: u64,
}

/// Reads the rings of the map at `path` whenever there are listeners, until the job is cancelled.
pub(crate) async fn read(path: &Path, monitor: &Arc<Monitor>, cx: &JobCtx) -> Result<(), RingError> {
    let mut count = monitor.listeners().count();
    loop {
        cx.health.ok("No listeners");
        tokio::select! {
            // The sender lives as long as the monitor.
            _ = count.wait_for(|count| *count > 0) => {}
            () = cx.cancelled() => return Ok(()),
        }
        let reader = monitor.clone();
        let mut rings = Rings::open(path, PAGES, move |cpu, event| match event {
            Event::Sample(parts) => reader.event(cpu, parts),
            Event::Lost(count) => reader.lost(cpu, count),
        })?;
        let cpus = rings.cpus();
        monitor.set_rings(Some(RingStatus {
            cpus,
            pages: PAGES,
            page_size: rustix::param::page_size(),
            lost: 0,
        }));
        cx.health.ok(format!("Reading the rings of {cpus} CPUs"));
        let failed = tokio::select! {
            error = rings.failed() => Some(error),
            _ = count.wait_for(|count| *count == 0) => None,
            () = cx.cancelled() => None,
        };
        rings.close().await;
        monitor.set_rings(None);
        if let Some(error) = failed {
            return Err(error);
        }
    }
}
