// SPDX-License-Identifier: Apache-2.0

//! Reads the event rings while the monitor has listeners.

use std::{
    io,
    ops::ControlFlow,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use aya::maps::{
    Map, MapData, PerfEventArray,
    perf::{PerfBufferError, PerfEvent, PerfEventArrayBuffer},
};
use hive::JobCtx;
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinSet,
};

use crate::Monitor;

/// Pages of the ring of a CPU.
const PAGES: usize = 64;
/// Events of a CPU that are sent before others have their turn.
const TURN: usize = 256;

/// Rings that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingStatus {
    /// CPUs with a ring.
    pub cpus: usize,
    /// Pages of a ring.
    pub pages: usize,
    /// Bytes of a page.
    pub page_size: usize,
    /// Events that were lost since a ring was full, since the agent started.
    pub lost: u64,
}

/// Why events cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Nothing has pinned it: are programs loaded?
    #[error("map of events cannot be opened at {}", path.display())]
    Open {
        /// Where it should be.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        cause: aya::maps::MapError,
    },
    /// The list of CPUs cannot be read.
    #[error("list of CPUs cannot be read from {file}")]
    Cpus {
        /// The file.
        file: &'static str,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// May this process read events of the whole system (`CAP_PERFMON` or `CAP_SYS_ADMIN`)?
    #[error("ring of CPU {cpu} cannot be opened")]
    Ring {
        /// The CPU.
        cpu: u32,
        /// What the kernel says.
        #[source]
        cause: PerfBufferError,
    },
    /// A ring cannot be waited for.
    #[error("ring of CPU {cpu} cannot be read")]
    Read {
        /// The CPU.
        cpu: u32,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// The task that reads a ring ended.
    #[error("ring is not read any more")]
    Interrupted(#[from] tokio::task::JoinError),
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
        // Its descriptor goes with the rings: the kernel then forgets them, and programs write nothing.
        let mut rings = open(path, monitor)?;
        let cpus = rings.len();
        monitor.set_rings(Some(RingStatus {
            cpus,
            pages: PAGES,
            page_size: rustix::param::page_size(),
            lost: 0,
        }));
        cx.health.ok(format!("Reading the rings of {cpus} CPUs"));
        let ended = tokio::select! {
            ended = rings.join_next() => ended,
            _ = count.wait_for(|count| *count == 0) => None,
            () = cx.cancelled() => None,
        };
        rings.shutdown().await;
        monitor.set_rings(None);
        if let Some(ended) = ended {
            ended??;
        }
    }
}

/// A task for each CPU. The rings are open when this returns: what programs report from now on is read.
fn open(path: &Path, monitor: &Arc<Monitor>) -> Result<JoinSet<Result<(), RingError>>, RingError> {
    let failed = |cause| RingError::Open {
        path: path.to_owned(),
        cause,
    };
    let map = MapData::from_pin(path).map_err(failed)?;
    let mut map = PerfEventArray::try_from(Map::PerfEventArray(map)).map_err(failed)?;
    let cpus = aya::util::online_cpus().map_err(|(file, cause)| RingError::Cpus { file, cause })?;
    let mut rings = JoinSet::new();
    for cpu in cpus {
        let ring = map
            .open(cpu, Some(PAGES))
            .map_err(|cause| RingError::Ring { cpu, cause })?;
        let ring = readable(ring).map_err(|cause| RingError::Read { cpu, cause })?;
        rings.spawn(drain(cpu, ring, monitor.clone()));
    }
    Ok(rings)
}

#[expect(
    deprecated,
    reason = "what replaces it is unsafe: for types whose descriptor can change or close early, which a ring's cannot"
)]
fn readable<T: AsRawFd>(ring: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(ring, Interest::READABLE)
}

async fn drain(
    cpu: u32,
    mut ring: AsyncFd<PerfEventArrayBuffer<MapData>>,
    monitor: Arc<Monitor>,
) -> Result<(), RingError> {
    loop {
        let mut ready = ring
            .readable_mut()
            .await
            .map_err(|cause| RingError::Read { cpu, cause })?;
        let read = ready.get_inner_mut().try_fold(0, |count, event| {
            match event {
                PerfEvent::Sample { head, tail } => monitor.event(cpu, [head, tail]),
                PerfEvent::Lost { count } => monitor.lost(cpu, count),
            }
            if count < TURN {
                ControlFlow::Continue(count + 1)
            } else {
                ControlFlow::Break(())
            }
        });
        match read {
            ControlFlow::Continue(_) => ready.clear_ready(),
            ControlFlow::Break(()) => tokio::task::yield_now().await,
        }
    }
}
