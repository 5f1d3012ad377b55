// SPDX-License-Identifier: Apache-2.0

//! Cells: the maps of all registered families.
//! Provides: [`Maps`], sizes (`Arc<LbMapSizes>`), and in the kernel the store of pinned maps. Requires: the settings of
//! [`skep_base_settings`]. Takes: what owners say of their maps ([`MapOwner`]), `Arc<dyn FieldNames>` and
//! [`Maglev`](skep_loadbalancer_maglev::Maglev), which has the size of lookup tables, if there are any.

use std::{sync::Arc, time::Duration};

use hive::{All, Cell, Cfg, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError, Trigger};
use skep_bpf_sys::{MapError, MapStore};

use crate::{
    Config, EventConfig, MapOwner, Maps,
    maps::Backing,
    observer::MapMetrics,
    sizes,
    store::{self, PinCheck},
};

/// The maps in the kernel: pinned on a BPF file system that is found or mounted, and claimed until the stop, so that a
/// second agent on the node is refused. Pins that others remove are made again: health reports them until the next check.
pub fn cell() -> Cell {
    module()
        .config::<Config>()
        .provide(store::new_store)
        .provide(store::pin_check)
        .provide(pinned)
        .run(store::watch_pins)
}

/// Maps in memory, with the semantics and sizes of the kernel's: for tests, and for nodes without BPF.
pub fn in_memory_cell() -> Cell {
    module().provide(in_memory)
}

fn module() -> Cell {
    Cell::module("bpf-maps", "BPF maps")
        .config::<EventConfig>()
        .provide(sizes::provide)
        .provide(skep_base_metrics::provided::<MapMetrics>)
        .provide(PressureTrigger::default)
        .run(report_pressure)
}

fn pinned(
    store: Arc<MapStore>,
    _check: Arc<PinCheck>,
    owners: All<MapOwner>,
    events: Cfg<EventConfig>,
    metrics: Arc<MapMetrics>,
    lifecycle: Lifecycle,
) -> Arc<Maps> {
    let maps = Arc::new(Maps::new(
        Backing::Kernel(store.clone()),
        owners.into_vec(),
        &events.buffers,
        metrics,
    ));
    let opened = maps.clone();
    lifecycle.on_start("open-maps", move |cx: HookCtx| {
        let (maps, store) = (opened.clone(), store.clone());
        async move {
            let count = tokio::task::spawn_blocking(move || maps.open()).await??;
            let root = store.root();
            cx.health
                .ok(format!("{count} maps are open, pinned below {}", root.display()));
            Ok::<(), OpenError>(())
        }
    });
    maps
}

fn in_memory(
    owners: All<MapOwner>,
    events: Cfg<EventConfig>,
    metrics: Arc<MapMetrics>,
) -> Result<Arc<Maps>, MapError> {
    let maps = Maps::new(Backing::Memory, owners.into_vec(), &events.buffers, metrics);
    maps.open()?;
    Ok(Arc::new(maps))
}

/// Why the maps are not open.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    /// One of them cannot be made.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The thread that does the work ended.
    #[error("maps were not opened")]
    Interrupted(#[from] tokio::task::JoinError),
}

fn report_pressure(maps: Arc<Maps>, count: PressureTrigger, jobs: Jobs) -> Result<(), SpawnError> {
    let Some(interval) = maps
        .pressure_interval()
        .filter(|interval| *interval > Duration::ZERO)
    else {
        return Ok(());
    };
    let job = Job::every(interval, "pressure-metrics-reporter", move |_: JobCtx| {
        // Counting a large map takes a while, and is work of the kernel.
        let maps = maps.clone();
        async move { tokio::task::spawn_blocking(move || maps.report_pressure()).await }
    });
    jobs.spawn(job.run_at_start().trigger(&count.0))
}

/// Asks for a count of the entries of maps before the next one is due: by owners whose maps were empty at the start.
#[derive(Debug, Clone, Default, hive::Value)]
pub struct PressureTrigger(Trigger);

impl PressureTrigger {
    /// Maps are counted now.
    pub fn trigger(&self) {
        self.0.trigger();
    }
}
