// SPDX-License-Identifier: Apache-2.0

//! Signals of programs: a map is full. A signal starts a pass of garbage collection at once.
//!
//! While a pass runs, the rings are closed, and programs write nothing. That pass handles the signals from before.

use std::{path::Path, time::Duration};

use hive::JobCtx;
use skep_datapath_rings::{Event, RingError, Rings};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use crate::{Conntrack, ConntrackError, metrics::ConntrackMetrics};

/// Pages of the ring of a CPU.
const PAGES: usize = 1;
/// Signals that are queued; more of them have no effect.
const WAITING: usize = 1024;
/// Least time that signals are muted.
const MUTED: Duration = Duration::from_secs(1);
/// They are muted for this multiple of the duration of the pass, so that passes take a tenth of a CPU at most.
const MUTED_TIMES: u32 = 9;

#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The pass that a signal asked for failed.
    #[error(transparent)]
    Collect(#[from] ConntrackError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalKind {
    /// It took many tries to find a source port.
    NatFull,
    /// A conntrack entry was not written.
    ConntrackFull,
}

impl SignalKind {
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

/// Runs a pass for the signals of the map at `path`, until the job is cancelled.
pub(crate) async fn handle(
    path: &Path,
    conntrack: &Conntrack,
    metrics: &ConntrackMetrics,
    cx: &JobCtx,
) -> Result<(), SignalError> {
    loop {
        let (mut rings, mut signals) = open(path)?;
        cx.health.ok("Waiting for signals");
        let mut heard = Vec::new();
        tokio::select! {
            _ = signals.recv_many(&mut heard, WAITING) => {}
            error = rings.failed() => return Err(error.into()),
            () = cx.cancelled() => return Ok(()),
        }
        rings.close().await;
        while let Ok(signal) = signals.try_recv() {
            heard.push(signal);
        }
        for signal in &heard {
            metrics.signal(signal.kind.name(), signal.is_ipv6);
        }
        let start = Instant::now();
        cx.health.ok("Handling signals");
        // Entries that the conntrack map evicted may be of live flows, which need their NAT entries.
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

/// Opens the rings of the map at `path`, and returns the signals that they have from now on.
fn open(path: &Path) -> Result<(Rings, mpsc::Receiver<Signal>), RingError> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let rings = Rings::open(path, PAGES, move |_, event| {
        if let Event::Sample(parts) = event
            && let Some(signal) = Signal::read(&parts.concat())
        {
            // Full: the queued signals say the same.
            let _ = sender.try_send(signal);
        }
    })?;
    Ok((rings, receiver))
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
