// SPDX-License-Identifier: Apache-2.0

//! Signals of programs: a map is full. They are heeded by a pass at once.
//!
//! While a pass runs, the rings are closed: the kernel forgets them, and programs write nothing. What they wrote before is
//! answered by that pass.

use std::{
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use aya::maps::{
    Map, MapData, PerfEventArray,
    perf::{PerfBufferError, PerfEvent, PerfEventArrayBuffer},
};
use hive::JobCtx;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{Conntrack, ConntrackError, metrics::ConntrackMetrics};

/// Pages of the ring of a CPU.
const PAGES: usize = 1;
/// Signals that wait; more say nothing new.
const WAITING: usize = 1024;
/// Least time that signals are muted.
const MUTED: Duration = Duration::from_secs(1);
/// They are muted for so many times of what the pass took, so that passes take a tenth of a CPU at most.
const MUTED_TIMES: u32 = 9;

/// Why signals cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// Nothing has pinned it: are programs loaded?
    #[error("map of signals cannot be opened at {}", path.display())]
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
    /// The pass that a signal asked for failed.
    #[error(transparent)]
    Collect(#[from] ConntrackError),
}

/// What a signal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalKind {
    /// It took many tries to find a source port.
    NatFull,
    /// A conntrack entry was not written.
    ConntrackFull,
}

impl SignalKind {
    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NatFull => "nat_fill_up",
            Self::ConntrackFull => "ct_fill_up",
        }
    }
}

/// A signal of a program. C twin: `struct signal` in `bpf/include/event/signal.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal {
    pub(crate) kind: SignalKind,
    pub(crate) is_ipv6: bool,
}

impl Signal {
    /// Two numbers in host order; `None` for signals that are for others.
    fn read(message: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = message.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let kind = match number(0)? {
            0 => SignalKind::NatFull,
            1 => SignalKind::ConntrackFull,
            _ => return None,
        };
        let is_ipv6 = match number(4)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self { kind, is_ipv6 })
    }
}

/// Heeds the signals of the map at `path` until the job is cancelled.
pub(crate) async fn obey(
    path: &Path,
    conntrack: &Conntrack,
    metrics: &ConntrackMetrics,
    cx: &JobCtx,
) -> Result<(), SignalError> {
    loop {
        let (mut rings, mut signals) = open(path)?;
        cx.health.ok("Waiting for signals");
        let mut heard = Vec::new();
        let ended = tokio::select! {
            _ = signals.recv_many(&mut heard, WAITING) => None,
            ended = rings.join_next() => ended,
            () = cx.cancelled() => return Ok(()),
        };
        if let Some(Ok(Err(error))) = ended {
            return Err(error);
        }
        // Closes the rings.
        rings.shutdown().await;
        while let Ok(signal) = signals.try_recv() {
            heard.push(signal);
        }
        for signal in &heard {
            metrics.signal(*signal);
        }
        let start = Instant::now();
        cx.health.ok("Answering signals");
        // Entries that the conntrack map forgot may be of live flows: their translations are needed.
        let purges = |is_ipv6| {
            heard.contains(&Signal {
                kind: SignalKind::NatFull,
                is_ipv6,
            })
        };
        conntrack.collect_and(purges).await?;
        let muted = (start.elapsed() * MUTED_TIMES).max(MUTED);
        tokio::select! {
            () = sleep(muted) => {}
            () = cx.cancelled() => return Ok(()),
        }
    }
}

type Rings = (JoinSet<Result<(), SignalError>>, mpsc::Receiver<Signal>);

/// A task for each CPU. The rings are open when this returns.
fn open(path: &Path) -> Result<Rings, SignalError> {
    let failed = |cause| SignalError::Open {
        path: path.to_owned(),
        cause,
    };
    let map = MapData::from_pin(path).map_err(failed)?;
    let mut map = PerfEventArray::try_from(Map::PerfEventArray(map)).map_err(failed)?;
    let cpus = aya::util::online_cpus().map_err(|(file, cause)| SignalError::Cpus { file, cause })?;
    let (sender, receiver) = mpsc::channel(WAITING);
    let mut rings = JoinSet::new();
    for cpu in cpus {
        let ring = map
            .open(cpu, Some(PAGES))
            .map_err(|cause| SignalError::Ring { cpu, cause })?;
        let ring = readable(ring).map_err(|cause| SignalError::Read { cpu, cause })?;
        rings.spawn(drain(cpu, ring, sender.clone()));
    }
    Ok((rings, receiver))
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
    signals: mpsc::Sender<Signal>,
) -> Result<(), SignalError> {
    loop {
        let mut ready = ring
            .readable_mut()
            .await
            .map_err(|cause| SignalError::Read { cpu, cause })?;
        ready.get_inner_mut().for_each(|event| {
            if let PerfEvent::Sample { head, tail } = event
                && let Some(signal) = Signal::read(&[head, tail].concat())
            {
                // Full: what waits says the same.
                let _ = signals.try_send(signal);
            }
        });
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, family: u32) -> Vec<u8> {
        [kind.to_ne_bytes(), family.to_ne_bytes()].concat()
    }

    #[test]
    fn signals_say_what_is_full() {
        let signal = |kind, is_ipv6| Some(Signal { kind, is_ipv6 });
        assert_eq!(Signal::read(&message(0, 0)), signal(SignalKind::NatFull, false));
        assert_eq!(
            Signal::read(&message(1, 1)),
            signal(SignalKind::ConntrackFull, true)
        );
        // The kernel pads events.
        let padded = [message(0, 1), vec![0; 4]].concat();
        assert_eq!(Signal::read(&padded), signal(SignalKind::NatFull, true));
    }

    #[test]
    fn signals_of_others_are_passed_over() {
        assert_eq!(Signal::read(&message(2, 0)), None);
        assert_eq!(Signal::read(&message(0, 7)), None);
        assert_eq!(Signal::read(&message(0, 0)[..6]), None);
    }
}
