// SPDX-License-Identifier: Apache-2.0

//! The rings of all CPUs.

use std::{convert::Infallible, future, io, ops::ControlFlow, os::fd::AsRawFd, path::Path};

use aya::maps::{
    Map, MapData, PerfEventArray,
    perf::{PerfEvent, PerfEventArrayBuffer},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinSet,
};

use crate::RingError;

/// Events of a CPU that are read before other tasks run.
const TURN: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// What a program wrote, padded by the kernel; in two parts where the ring wraps around.
    Sample([&'a [u8]; 2]),
    /// So many events were lost since the ring was full.
    Lost(u64),
}

/// Open rings, one for each CPU, and the tasks that read them.
#[derive(Debug)]
pub struct Rings(JoinSet<Result<Infallible, RingError>>);

impl Rings {
    /// Opens a ring of so many pages for each online CPU in the perf event array at `path`. From the return on, `read`
    /// is called with the CPU for each event that programs write.
    pub fn open<F>(path: &Path, pages: usize, read: F) -> Result<Self, RingError>
    where
        F: Fn(u32, Event<'_>) + Clone + Send + 'static,
    {
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
                .open(cpu, Some(pages))
                .map_err(|cause| RingError::Ring { cpu, cause })?;
            let ring = readable(ring).map_err(|cause| RingError::Read { cpu, cause })?;
            rings.spawn(drain(cpu, ring, read.clone()));
        }
        Ok(Self(rings))
    }

    pub fn cpus(&self) -> usize {
        self.0.len()
    }

    /// Waits until a ring cannot be read any more, and returns why. Cancel safe.
    pub async fn failed(&mut self) -> RingError {
        match self.0.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
            None => future::pending().await,
        }
    }

    /// Closes the rings. After the return, `read` is called no more.
    pub async fn close(mut self) {
        self.0.shutdown().await;
    }
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
    read: impl Fn(u32, Event<'_>),
) -> Result<Infallible, RingError> {
    loop {
        let mut ready = ring
            .readable_mut()
            .await
            .map_err(|cause| RingError::Read { cpu, cause })?;
        let drained = ready.get_inner_mut().try_fold(0, |count, event| {
            read(
                cpu,
                match event {
                    PerfEvent::Sample { head, tail } => Event::Sample([head, tail]),
                    PerfEvent::Lost { count } => Event::Lost(count),
                },
            );
            if count < TURN {
                ControlFlow::Continue(count + 1)
            } else {
                ControlFlow::Break(())
            }
        });
        match drained {
            ControlFlow::Continue(_) => ready.clear_ready(),
            ControlFlow::Break(()) => tokio::task::yield_now().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_map_that_is_not_pinned_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cilium_events");

        let error = Rings::open(&path, 1, |_, _| ()).unwrap_err();

        assert!(matches!(error, RingError::Open { .. }), "{error}");
        assert!(error.to_string().contains("/cilium_events"), "{error}");
    }
}
