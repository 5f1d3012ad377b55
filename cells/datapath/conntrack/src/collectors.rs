// SPDX-License-Identifier: Apache-2.0

//! Which collector there is: iterators in the kernel, or batch operations.

use std::{io, sync::Arc};

use hive::Cfg;
use parking_lot::Mutex;
use skep_base_settings::MonitorConfig;
use skep_bpf_maps::collect::{BatchCollector, FlowCollector, FlowMap};
use skep_bpf_programs::{FlowIterators, LoadError, MapClock, kernel_hz, map_ticks};
use skep_bpf_sys::{MapError, MapStore, clock::kernel_seconds};

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A map that is pinned cannot be opened.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The thread that loads it ended.
    #[error("the collector was not loaded")]
    Interrupted(#[from] tokio::task::JoinError),
}

pub trait CollectorSource: Send + Sync {
    /// The collector of the maps that are there now; `None` if no flow is tracked. May block.
    ///
    /// # Errors
    ///
    /// [`SourceError`] if there are maps that it cannot open.
    fn collector(&self) -> Result<Option<Arc<dyn FlowCollector>>, SourceError>;
}

/// Collectors of the pinned maps of a store.
pub(crate) struct PinnedMaps {
    store: Arc<MapStore>,
    /// Programs may tell time by the kernel's tick.
    clock_probe: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the kernel's ticks can be counted, if that was asked.
    has_ticks: Option<bool>,
    /// Those of the last pass, and whether their clock counts ticks.
    iterators: Option<(bool, Arc<FlowIterators>)>,
    /// The kernel refused the iterators: do not ask again.
    is_refused: bool,
}

pub(crate) fn pinned(store: Arc<MapStore>, config: Cfg<MonitorConfig>) -> Arc<dyn CollectorSource> {
    Arc::new(PinnedMaps {
        store,
        clock_probe: config.clock_probe,
        state: Mutex::default(),
    })
}

impl PinnedMaps {
    fn load(&self, is_ticking: bool) -> Result<Option<Arc<FlowIterators>>, SourceError> {
        let mut state = self.state.lock();
        if state.is_refused {
            return Ok(None);
        }
        if let Some((ticking, iterators)) = &state.iterators
            && *ticking == is_ticking
            && iterators.is_current(&self.store)
        {
            return Ok(Some(iterators.clone()));
        }
        match FlowIterators::load(&self.store, is_ticking) {
            Ok(iterators) => {
                let iterators = Arc::new(iterators);
                state.iterators = Some((is_ticking, iterators.clone()));
                Ok(Some(iterators))
            }
            Err(LoadError::Map { source, .. }) => Err(source.into()),
            Err(error) => {
                tracing::info!(
                    error = hive::error_chain(&error),
                    "Kernel without map iterators, using batch operations for conntrack garbage collection"
                );
                state.is_refused = true;
                Ok(None)
            }
        }
    }

    /// Whether the clock of the maps counts ticks: as recorded beside them, else as of the programs that will write them.
    fn is_ticking(&self) -> Result<bool, MapError> {
        if let Some(clock) = MapClock::recorded(&self.store)? {
            return Ok(clock.ticks().is_some());
        }
        let mut state = self.state.lock();
        Ok(self.clock_probe && *state.has_ticks.get_or_insert_with(|| kernel_hz().is_ok()))
    }
}

impl CollectorSource for PinnedMaps {
    fn collector(&self) -> Result<Option<Arc<dyn FlowCollector>>, SourceError> {
        let directory = self.store.directory();
        if !FlowMap::ALL
            .iter()
            .any(|map| directory.join(map.family().name).exists())
        {
            return Ok(None);
        }
        let is_ticking = self.is_ticking()?;
        if let Some(iterators) = self.load(is_ticking)? {
            return Ok(Some(iterators));
        }
        let clock = Box::new(move || if is_ticking { ticks() } else { seconds() });
        Ok(Some(Arc::new(BatchCollector::open(&self.store, clock)?)))
    }
}

fn ticks() -> io::Result<u64> {
    map_ticks().map(u64::from).map_err(io::Error::other)
}

fn seconds() -> io::Result<u64> {
    kernel_seconds().map_err(io::Error::other)
}
