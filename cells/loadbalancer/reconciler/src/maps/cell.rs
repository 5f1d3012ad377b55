// SPDX-License-Identifier: Apache-2.0

//! Cells: the maps, in the kernel or in memory.
//! Give: `Arc<dyn LbMaps>`. Need: settings, and for the kernel the store of pinned maps.

use std::sync::{Arc, OnceLock};

use hive::{Cell, Cfg, HookCtx, Jobs, Lifecycle, SpawnError};
use skep_bpf_maps::lb::LbMapSizes;
use skep_bpf_sys::MapStore;
use skep_datapath_config::{AddressFamilies, MapConfig};
use skep_datapath_maps::lb_map_sizes;
use skep_maglev::Maglev;

use super::bpf::BpfMaps;
use super::fake::FakeMaps;
use super::metrics::{self, CountedMaps, MapMetrics};
use super::{Entries, Failures, Keys, LbMaps, MapEntry, MapError, MapKind, MapUsage};

fn module() -> Cell {
    Cell::module("loadbalancer-maps", "Load-balancing maps")
        .provide(skep_metrics::provided::<MapMetrics>)
        .run(report_pressure)
}

/// The pinned maps in the kernel; opened when the hive starts.
pub fn kernel() -> Cell {
    module().provide(open_late)
}

/// Maps in memory, with the limits of the real ones.
pub fn in_memory() -> Cell {
    module().provide(in_process)
}

fn in_process(config: Cfg<MapConfig>, maglev: Maglev, metrics: Arc<MapMetrics>) -> Arc<dyn LbMaps> {
    // What depends on the machine is only in the kernel.
    let sizes = lb_map_sizes(&config, maglev.table_size().get(), 0, 1);
    Arc::new(CountedMaps::new(Arc::new(FakeMaps::new(sizes)), metrics))
}

#[derive(hive::Params)]
struct KernelParams {
    families: Cfg<AddressFamilies>,
    sizes: Arc<LbMapSizes>,
    store: Arc<MapStore>,
    metrics: Arc<MapMetrics>,
    lifecycle: Lifecycle,
}

fn open_late(params: KernelParams) -> Arc<dyn LbMaps> {
    let KernelParams {
        families,
        sizes,
        store,
        metrics,
        lifecycle,
    } = params;
    let late = Arc::new(LateMaps::default());
    let maps = late.clone();
    lifecycle.on_start("open-maps", move |_: HookCtx| {
        let (maps, store, sizes, families) = (maps.clone(), store.clone(), *sizes, families.clone());
        async move {
            if maps.0.get().is_none() {
                let opened = BpfMaps::open(&store, sizes, families.ipv4, families.ipv6)?;
                // A second start finds them open.
                let _ = maps.0.set(opened);
            }
            Ok::<(), skep_bpf_sys::MapError>(())
        }
    });
    Arc::new(CountedMaps::new(late, metrics))
}

fn report_pressure(
    maps: Arc<dyn LbMaps>,
    metrics: Arc<MapMetrics>,
    config: Cfg<MapConfig>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    metrics::report_pressure(maps, metrics, config.pressure_interval, &jobs)
}

/// Maps that are opened when the hive starts.
#[derive(Default)]
struct LateMaps(OnceLock<BpfMaps>);

impl LbMaps for LateMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        match self.0.get() {
            Some(maps) => maps.update(entries),
            None => (0..entries.len())
                .map(|index| (index, MapError::Closed))
                .collect(),
        }
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        match self.0.get() {
            Some(maps) => maps.delete(keys),
            None => (0..keys.len()).map(|index| (index, MapError::Closed)).collect(),
        }
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        self.0.get().ok_or(MapError::Closed)?.dump(kind, visit)
    }

    fn usage(&self) -> Vec<MapUsage> {
        self.0.get().map(LbMaps::usage).unwrap_or_default()
    }
}
