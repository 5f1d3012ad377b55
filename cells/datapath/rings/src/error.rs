// SPDX-License-Identifier: Apache-2.0

//! Why rings cannot be read.

use std::{io, path::PathBuf};

/// Why rings cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// No perf event array is pinned there: are programs loaded?
    #[error("perf event array cannot be opened at {}", path.display())]
    Open {
        /// Where it should be pinned.
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
        cause: aya::maps::perf::PerfBufferError,
    },
    /// A ring cannot be polled.
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
