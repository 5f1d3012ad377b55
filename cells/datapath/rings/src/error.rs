// SPDX-License-Identifier: Apache-2.0

//! Why rings cannot be read.

use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// No perf event array is pinned there: are programs loaded?
    #[error("perf event array cannot be opened at {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        cause: aya::maps::MapError,
    },
    /// The list of CPUs cannot be read.
    #[error("list of CPUs cannot be read from {file}")]
    Cpus {
        file: &'static str,
        #[source]
        cause: io::Error,
    },
    /// May this process read events of the whole system (`CAP_PERFMON` or `CAP_SYS_ADMIN`)?
    #[error("ring of CPU {cpu} cannot be opened")]
    Ring {
        cpu: u32,
        #[source]
        cause: aya::maps::perf::PerfBufferError,
    },
    #[error("ring of CPU {cpu} cannot be read")]
    Read {
        cpu: u32,
        #[source]
        cause: io::Error,
    },
    /// The task that reads a ring ended.
    #[error("ring is not read any more")]
    Interrupted(#[from] tokio::task::JoinError),
}
