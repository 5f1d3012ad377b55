// SPDX-License-Identifier: Apache-2.0

//! The maps of all registered families whose owners are part of the program.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use skep_bpf_maps::{Dump, Family, MapFamily, MapSizes, NestedFamily, families, layout::Layout, text::Text};
use skep_bpf_sys::{
    KernelMap, Map, MapError, MapStore, MemoryMap, NestedMap, RawMap,
    map::{LateMap, ObservedMap, Plain},
    store::Carried,
};

use crate::{
    MapOwner,
    buffer::{BufferSettings, EventBuffer},
    observer::{FailedEntry, MapLog, MapMetrics},
    owner::Owners,
};

/// Keys of lost entries that a warning names.
const LOST_NAMED: usize = 16;
/// Ends the name of a pin until it replaces that of another map, or the map is filled.
const PENDING: &str = ":new";

/// Where maps are.
pub(crate) enum Backing {
    /// Pinned in a store.
    Kernel(Arc<MapStore>),
    /// In this process.
    Memory,
    /// In this process, below what a test puts over them.
    Wrapped(Box<Wrap>),
}

type Wrap = dyn Fn(&str, Arc<dyn RawMap>) -> Arc<dyn RawMap> + Send + Sync;

/// The maps of all registered families whose owners are part of the program. Owners take handles when they are built;
/// one start hook opens the maps.
pub struct Maps {
    backing: Backing,
    owners: Owners,
    buffers: BufferSettings,
    metrics: Arc<MapMetrics>,
    open: Mutex<BTreeMap<String, Arc<OpenMap>>>,
}

/// One map of a family, and what is known of its writes.
pub struct OpenMap {
    family: &'static Family,
    log: Arc<MapLog>,
    path: PathBuf,
    is_pinned: bool,
    late: Arc<LateMap>,
    handle: Arc<dyn RawMap>,
}

impl Maps {
    pub(crate) fn new(
        backing: Backing,
        owners: Vec<MapOwner>,
        buffers: &BufferSettings,
        metrics: Arc<MapMetrics>,
    ) -> Self {
        let maps = Self {
            backing,
            owners: Owners::new(owners),
            buffers: buffers.clone(),
            metrics,
            open: Mutex::default(),
        };
        for family in families() {
            if maps.owners.have(family) && !family.has_instances {
                maps.map(family);
            }
        }
        maps
    }

    /// Maps in memory, open, of families whose owners are given, or of which a handle is taken.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] for sizes that the kernel would refuse.
    pub fn in_memory(owners: impl IntoIterator<Item = MapOwner>) -> Result<Self, MapError> {
        Self::opened(Backing::Memory, owners)
    }

    /// As [`in_memory`](Self::in_memory); every map, with its name, passes `wrap`, which may let its operations fail.
    ///
    /// # Errors
    ///
    /// As [`in_memory`](Self::in_memory).
    pub fn wrapped(
        owners: impl IntoIterator<Item = MapOwner>,
        wrap: impl Fn(&str, Arc<dyn RawMap>) -> Arc<dyn RawMap> + Send + Sync + 'static,
    ) -> Result<Self, MapError> {
        Self::opened(Backing::Wrapped(Box::new(wrap)), owners)
    }

    /// Maps pinned in a store, open, of families whose owners are here: for programs without a hive.
    ///
    /// # Errors
    ///
    /// [`MapError`] if a map cannot be made: no privileges, no BPF file system, no memory.
    pub fn pinned(
        store: Arc<MapStore>,
        owners: impl IntoIterator<Item = MapOwner>,
    ) -> Result<Self, MapError> {
        Self::opened(Backing::Kernel(store), owners)
    }

    fn opened(backing: Backing, owners: impl IntoIterator<Item = MapOwner>) -> Result<Self, MapError> {
        let maps = Self::new(
            backing,
            owners.into_iter().collect(),
            &BufferSettings::default(),
            Arc::default(),
        );
        maps.open()?;
        Ok(maps)
    }

    /// The map of a family. Operations fail until the start hook has opened it.
    pub fn handle<K, V>(&self, family: &'static MapFamily<K, V>) -> Map<K, V>
    where
        K: Plain + Ord + Text + Layout,
        V: Plain + Text + Layout,
    {
        Map::from_raw(self.map(&family.family).handle.clone())
            .expect("a family's map has keys and values of the sizes of its types")
    }

    /// The map of tables of a family. Operations fail until the start hook has opened it.
    pub fn nested<K, E>(&self, family: &'static NestedFamily<K, E>) -> NestedMap<K, E>
    where
        K: Plain + Ord + Text + Layout,
        E: Plain + Text + Layout,
    {
        NestedMap::from_raw(self.map(&family.family).handle.clone())
            .expect("a family's map has keys of the size of its type")
    }

    /// Where maps are pinned; none if they are in memory.
    pub fn store(&self) -> Option<&Arc<MapStore>> {
        match &self.backing {
            Backing::Kernel(store) => Some(store),
            Backing::Memory | Backing::Wrapped(_) => None,
        }
    }

    pub(crate) fn raw(&self, family: &'static Family) -> Arc<dyn RawMap> {
        self.map(family).handle.clone()
    }

    /// Opens what is not open yet; returns how many maps there are.
    pub(crate) fn open(&self) -> Result<usize, MapError> {
        let all = self.all();
        for map in &all {
            self.open_one(map)?;
        }
        Ok(all.len())
    }

    /// Sizes of the maps of all owners: what programs that use them are loaded with.
    pub fn sizes(&self) -> MapSizes {
        self.owners.sizes.clone()
    }

    /// The maps, by name.
    pub fn all(&self) -> Vec<Arc<OpenMap>> {
        self.open.lock().values().cloned().collect()
    }

    /// The map of this name.
    pub fn get(&self, name: &str) -> Option<Arc<OpenMap>> {
        self.open.lock().get(name).cloned()
    }

    pub(crate) fn pressure_interval(&self) -> Option<Duration> {
        self.owners.pressure_interval()
    }

    /// Measures how full maps are.
    pub(crate) fn report_pressure(&self) {
        for map in self.all() {
            if map.family.has_instances || !self.owners.measure(map.family) {
                continue;
            }
            let mut entries = 0_u32;
            let walked = map.handle.walk(&mut |_, _| entries += 1);
            if walked.is_ok() {
                self.metrics
                    .set_pressure(map.family.name, entries, map.handle.info().max_entries);
            }
        }
    }

    /// Reports how full a map is, measured by another cell: for maps that are walked anyway.
    pub fn report_entries(&self, name: &str, entries: u32, max: u32) {
        self.metrics.set_pressure(name, entries, max);
    }

    pub(crate) fn report_pressure_of(&self, series: &str, entries: u32, max: u32, threshold: f64) {
        self.metrics.set_pressure_of(series, entries, max, threshold);
    }

    /// A map of a family that is not open yet.
    fn describe(&self, family: &'static Family, name: &str) -> Arc<OpenMap> {
        let spec = family.spec(&self.owners.sizes);
        let late = Arc::new(LateMap::named(name.to_owned(), spec));
        let buffer = self.buffers.of(name).or_else(|| self.buffers.of(family.name));
        let log = Arc::new(MapLog::new(family, buffer, self.metrics.clone()));
        let handle = Arc::new(ObservedMap::new(late.clone(), log.clone()));
        Arc::new(OpenMap {
            family,
            log,
            path: match self.store() {
                Some(store) => store.path(name),
                None => name.into(),
            },
            is_pinned: self.owners.pin(family),
            late,
            handle,
        })
    }

    fn map(&self, family: &'static Family) -> Arc<OpenMap> {
        let mut open = self.open.lock();
        let map = open
            .entry(family.name.to_owned())
            .or_insert_with(|| self.describe(family, family.name))
            .clone();
        drop(open);
        if self.store().is_none()
            && let Err(error) = self.open_one(&map)
        {
            tracing::warn!(error = hive::error_chain(&error), "Cannot create map");
        }
        map
    }

    fn open_one(&self, map: &OpenMap) -> Result<(), MapError> {
        let spec = map.late.spec();
        match &self.backing {
            Backing::Memory | Backing::Wrapped(_) if map.late.get().is_some() => {}
            Backing::Memory => map.late.fill(Arc::new(MemoryMap::create(spec)?)),
            Backing::Wrapped(wrap) => map
                .late
                .fill(wrap(map.late.name(), Arc::new(MemoryMap::create(spec)?))),
            Backing::Kernel(store) if map.family.has_instances => {
                map.late
                    .fill(Arc::new(store.provide_inner(spec, map.late.name())?));
            }
            // Also at a second start, which pins the map again.
            Backing::Kernel(store) if map.is_pinned => {
                map.late.fill(Arc::new(store.provide(spec)?));
                if let Some(carried) = store.take_carried(spec.name) {
                    map.report_lost(&carried);
                }
            }
            Backing::Kernel(store) => {
                if map.late.get().is_none() {
                    map.late.fill(Arc::new(KernelMap::create(spec)?));
                }
                store.unpin(spec.name)?;
            }
        }
        Ok(())
    }

    pub(crate) fn open_instance(
        &self,
        family: &'static Family,
        instance: u16,
    ) -> Result<Arc<OpenMap>, MapError> {
        let name = family.instance_name(instance);
        if let Some(map) = self.get(&name) {
            return Ok(map);
        }
        let map = self.describe(family, &name);
        self.open_one(&map)?;
        self.open.lock().insert(name, map.clone());
        Ok(map)
    }

    pub(crate) fn instances_of(&self, family: &'static Family) -> Result<BTreeSet<u16>, MapError> {
        let failed = |source| MapError::Walk {
            map: family.name.to_owned(),
            source,
        };
        let pins = self.store().map(|store| store.pins(family.name));
        let pins = pins.transpose().map_err(failed)?.unwrap_or_default();
        let open = self.open.lock();
        let names = open.keys().chain(&pins);
        // Also those whose map was not under its name yet when the agent was killed.
        let names = names.map(|name| name.strip_suffix(PENDING).unwrap_or(name));
        Ok(names.filter_map(|name| family.instance_of(name)).collect())
    }

    pub(crate) fn remove_instance(&self, family: &'static Family, instance: u16) -> Result<(), MapError> {
        let name = family.instance_name(instance);
        if let Some(store) = self.store() {
            store.unpin(&name)?;
        }
        self.open.lock().remove(&name);
        Ok(())
    }
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.open.lock().keys()).finish()
    }
}

impl OpenMap {
    // The owner of the map reports what it cannot write there, each time it tries.
    fn report_lost(&self, carried: &Carried) {
        if carried.lost.is_empty() {
            return;
        }
        let named = carried.lost.iter().take(LOST_NAMED);
        let keys: Vec<String> = named.map(|key| self.family.key.text(key)).collect();
        tracing::warn!(
            map = self.family.name,
            setting = self.family.size_setting(),
            lost = carried.lost.len(),
            keys = keys.join("; "),
            "Map is smaller than before, dropped entries"
        );
    }

    /// Its family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Where it is pinned; its name if it is in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be found by others: maps of an address family that is off are not pinned.
    pub fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// The map by bytes: for cells that read it if its owner is part of the program, and do not open it otherwise.
    pub fn raw(&self) -> Arc<dyn RawMap> {
        self.handle.clone()
    }

    /// All entries.
    ///
    /// # Errors
    ///
    /// What the kernel says; see [`Dump::is_unreadable`].
    pub fn dump(&self) -> io::Result<Dump> {
        self.family.dump(&*self.handle)
    }

    /// Entries whose last write failed, by key.
    pub fn failed(&self) -> BTreeMap<Vec<u8>, FailedEntry> {
        self.log.failed()
    }

    /// The last writes, if they are kept.
    pub fn events(&self) -> Option<&EventBuffer> {
        self.log.events()
    }
}

impl std::fmt::Debug for OpenMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpenMap").field(&self.handle).finish()
    }
}
