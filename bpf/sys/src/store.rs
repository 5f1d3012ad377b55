// SPDX-License-Identifier: Apache-2.0

//! The directory of pinned maps: create, open, replace.
//!
//! All maps of the datapath are pinned in `<root>/tc/globals` by their full names. A pinned map whose type,
//! sizes or flags are not what is wanted belongs to another version or configuration. Programs still use it,
//! so it stays pinned while a new map grows beside it under a temporary name; once all programs run with
//! the new one it takes over the pin. Its entries go over to the new map if only its size or flags differ: before
//! anything reads the new map, and those of LRU maps, which programs write, again when the programs are switched
//! ([`MapStore::carry_pending`], [`Hold::release`]). A [`Hold`] says that programs are about to be attached: while one
//! is held, take-overs wait for [`Hold::release`].

use std::{
    collections::HashMap,
    fmt, fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

mod carry;
mod epoch;

pub use carry::Carried;
pub use epoch::EPOCH;
pub(crate) use epoch::Epoch;

use crate::{
    map::{
        KernelMap, Map, MapError, MapSpec, MapTypes, Mismatch, NestedMap, NestedSpec, Plain, RawMap, RawSpec,
    },
    syscall as sys,
};

/// Ends the name of a map that waits for its pin.
const PENDING: &str = ":new";

/// The maps pinned below one BPF file system. Cheap to share; makes no system call until it is used.
#[derive(Debug)]
pub struct MapStore {
    state: Mutex<State>,
    epoch: Epoch,
}

#[derive(Debug)]
struct State {
    root: PathBuf,
    holds: usize,
    /// Maps that wait for their pins: name → where they are pinned meanwhile.
    pending: HashMap<String, PathBuf>,
    /// Maps that this process has decided on: whoever asks again gets the same one. Open, so that they can be pinned
    /// again.
    decided: HashMap<String, OwnedFd>,
    /// Replaced maps that programs go on to write until the new ones have the pins.
    carried: HashMap<String, KernelMap>,
    /// What became of the entries of replaced maps.
    reports: HashMap<String, Carried>,
    /// Names and types of the fields of new maps.
    types: Option<MapTypes>,
}

/// Keeps replaced maps from taking over their pins until programs use them. Dropped without
/// [`release`](Self::release), take-overs are abandoned: what is attached goes on with the old maps.
pub struct Hold {
    store: Arc<MapStore>,
    released: bool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

impl MapStore {
    /// The store below a BPF file system mounted at `root` (see [`crate::mount::bpffs`]).
    pub fn new(root: impl Into<PathBuf>) -> Arc<Self> {
        let state = State {
            root: root.into(),
            holds: 0,
            pending: HashMap::new(),
            decided: HashMap::new(),
            carried: HashMap::new(),
            reports: HashMap::new(),
            types: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            epoch: Epoch::default(),
        })
    }

    /// Root of the BPF file system.
    pub fn root(&self) -> PathBuf {
        self.state.lock().root.clone()
    }

    /// Moves the store to another root: what the configuration named turned out to be no BPF file system.
    pub fn set_root(&self, root: impl Into<PathBuf>) {
        self.state.lock().root = root.into();
    }

    /// Sets the debug information of maps that are created from now on.
    pub fn describe(&self, types: MapTypes) {
        self.state.lock().types = Some(types);
    }

    pub fn directory(&self) -> PathBuf {
        self.state.lock().directory()
    }

    /// Where the map `name` is pinned.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Opens the pinned map, or creates and pins it. A pinned one that does not fit is replaced, see the
    /// [module](self); another size of inner maps counts as a difference. Within this process all callers get the
    /// same map.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn provide(&self, spec: &RawSpec) -> Result<KernelMap, MapError> {
        let mut state = self.state.lock();
        let name = spec.name;
        if state.decided.contains_key(name) {
            state.pin_again(name)?;
            let map = KernelMap::open_with(name, &state.current(name), spec.inner)?;
            return Ok(map.raising(&self.epoch));
        }
        let map = state.provide(spec)?;
        state.decide(name, &map)?;
        if name == EPOCH
            && let Some(fd) = map.fd()
        {
            let filled = self.epoch.fill(fd);
            filled.map_err(|source| MapError::Inspect {
                map: name.to_owned(),
                source,
            })?;
            // An earlier process may have been killed in a write.
            self.epoch.forget_writers();
        }
        Ok(map.raising(&self.epoch))
    }

    /// Opens the inner map of a map of maps that is pinned as `pin`, or creates and pins it. One that does not fit is
    /// replaced, empty: fill it before the outer map leads to it. Within this process all callers get the same map.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn provide_inner(&self, spec: &RawSpec, pin: &str) -> Result<KernelMap, MapError> {
        let mut state = self.state.lock();
        if state.decided.contains_key(pin) {
            state.pin_again(pin)?;
            return Ok(KernelMap::open(pin, &state.current(pin))?.raising(&self.epoch));
        }
        let map = state.provide_inner(spec, pin)?;
        state.decide(pin, &map)?;
        Ok(map.raising(&self.epoch))
    }

    /// Names of the pins that begin with `prefix`, sorted.
    ///
    /// # Errors
    ///
    /// What the file system says; a directory that is not there has none.
    pub fn pins(&self, prefix: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.directory()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            names.extend(
                name.to_str()
                    .filter(|name| name.starts_with(prefix))
                    .map(str::to_owned),
            );
        }
        names.sort();
        Ok(names)
    }

    /// As [`provide`](Self::provide), typed.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn open_or_create<K: Plain, V: Plain>(&self, spec: &MapSpec<K, V>) -> Result<Map<K, V>, MapError> {
        Map::from_raw(Arc::new(self.provide(spec.raw())?))
    }

    /// As [`provide`](Self::provide), for maps of maps.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn open_or_create_nested<K: Plain, E: Plain>(
        &self,
        spec: &NestedSpec<K, E>,
    ) -> Result<NestedMap<K, E>, MapError> {
        NestedMap::from_raw(Arc::new(self.provide(spec.raw())?))
    }

    /// Opens a pinned map as it is, for readers.
    ///
    /// # Errors
    ///
    /// [`MapError::Open`] if there is none ([`MapError::is_missing`]), [`MapError::Incompatible`] if keys
    /// or values have other sizes.
    pub fn open<K: Plain, V: Plain>(&self, name: &str) -> Result<Map<K, V>, MapError> {
        Map::from_raw(Arc::new(self.open_raw(name)?))
    }

    /// As [`open`](Self::open), whatever keys and values are.
    ///
    /// # Errors
    ///
    /// [`MapError::Open`] if there is none, [`MapError::NotMap`] if it is something else.
    pub fn open_raw(&self, name: &str) -> Result<KernelMap, MapError> {
        let state = self.state.lock();
        self.epoch.find(&state.directory());
        Ok(KernelMap::open(name, &state.current(name))?.raising(&self.epoch))
    }

    /// Invalidates what programs recorded of flows: something that decides on packets has changed, and is in no map.
    pub fn raise_epoch(&self) {
        self.epoch.raise();
    }

    /// Writes to maps that have begun and did not end; none without a flow table.
    pub fn writers(&self) -> Option<u32> {
        self.epoch.writers()
    }

    /// The epoch of recorded flows; none without a flow table.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch.get()
    }

    /// Removes the pin of a map; false if there was none. Programs that use the map keep it alive.
    ///
    /// # Errors
    ///
    /// [`MapError::Unpin`] if the file system refuses it.
    pub fn unpin(&self, name: &str) -> Result<bool, MapError> {
        let mut state = self.state.lock();
        state.pending.remove(name);
        state.decided.remove(name);
        state.carried.remove(name);
        let directory = state.directory();
        remove(name, &directory.join(format!("{name}{PENDING}")))?;
        remove(name, &directory.join(name))
    }

    /// What became of the entries of a map that was replaced since the last call.
    pub fn take_carried(&self, name: &str) -> Option<Carried> {
        self.state.lock().reports.remove(name)
    }

    /// Copies what programs wrote since the maps were replaced: to be called right before they are switched, so that
    /// flows which began meanwhile are known after it.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] names the first map whose entries could not be copied; those of others are.
    pub fn carry_pending(&self) -> Result<(), MapError> {
        let state = self.state.lock();
        let pending = state.pending.iter();
        let results: Vec<_> = pending
            .map(|(name, temporary)| state.carry_new(name, temporary))
            .collect();
        results.into_iter().collect()
    }

    /// Maps were replaced and wait for their pins.
    pub fn has_pending(&self) -> bool {
        !self.state.lock().pending.is_empty()
    }

    /// Announces programs that will use the maps: take-overs wait until the hold is released.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.state.lock().holds += 1;
        Hold {
            store: self.clone(),
            released: false,
        }
    }

    /// Pins the maps of this process again whose pins are gone: programs and this process go on with the same maps,
    /// and others find them. Returns their names.
    ///
    /// # Errors
    ///
    /// [`MapError::Pin`] names the first map that could not be pinned; the others are.
    pub fn pin_missing(&self) -> Result<Vec<String>, MapError> {
        let state = self.state.lock();
        let mut names: Vec<&String> = state.decided.keys().collect();
        names.sort();
        let mut again = Vec::new();
        let mut failed = Ok(());
        for name in names {
            match state.pin_again(name) {
                Ok(true) => again.push(name.clone()),
                Ok(false) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.map(|()| again)
    }
}

impl State {
    fn provide(&mut self, spec: &RawSpec) -> Result<KernelMap, MapError> {
        let name = spec.name;
        let directory = self.directory();
        make_directory(&directory)?;
        let (path, temporary) = (directory.join(name), directory.join(format!("{name}{PENDING}")));
        // Left by a process that ended between creating a map and handing it the pin.
        remove(name, &temporary)?;

        let create = |types: Option<&MapTypes>, path: &Path| {
            let map = KernelMap::create_described(spec, types)?;
            pin(name, &map, path)?;
            Ok(map)
        };
        let (reason, carried) = match KernelMap::open_with(name, &path, spec.inner) {
            Ok(map) => {
                let mismatch = differences(spec, &map)?;
                if mismatch.is_empty() {
                    return Ok(map);
                }
                let carried = carry::is_carried(spec, &map.info()).then_some(map);
                (mismatch.to_string(), carried)
            }
            Err(error) if error.is_missing() => return create(self.types.as_ref(), &path),
            Err(error @ MapError::NotMap { .. }) => (error.to_string(), None),
            Err(error) => return Err(error),
        };

        let map = create(self.types.as_ref(), &temporary)?;
        if let Some(old) = carried {
            // Before programs use the new map: a flow keeps its backend and its source port.
            let carried = carry::carry(&old, &map).map_err(|source| walk(name, source))?;
            let (entries, lost) = (carried.entries, carried.lost.len());
            tracing::info!(
                map = name,
                reason,
                entries,
                lost,
                "Replacing pinned map, keeping its entries"
            );
            self.reports.insert(name.to_owned(), carried);
            if carry::is_written_by_programs(spec.kind) {
                self.carried.insert(name.to_owned(), old);
            }
        } else {
            tracing::warn!(
                map = name,
                reason,
                "Replacing incompatible pinned map, dropping its entries"
            );
        }
        if self.holds > 0 {
            self.pending.insert(name.to_owned(), temporary);
        } else {
            self.take_over(name, &temporary)?;
        }
        Ok(map)
    }

    fn provide_inner(&self, spec: &RawSpec, pin: &str) -> Result<KernelMap, MapError> {
        let directory = self.directory();
        make_directory(&directory)?;
        let (path, temporary) = (directory.join(pin), directory.join(format!("{pin}{PENDING}")));
        remove(pin, &temporary)?;
        match KernelMap::open_with(pin, &path, None) {
            Ok(map) if spec.differences(&map.info()).is_empty() => return Ok(map),
            Ok(_) | Err(MapError::NotMap { .. }) => {}
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
        let map = KernelMap::create(spec)?.named(pin);
        self::pin(pin, &map, &temporary)?;
        take_over(pin, &temporary, &path)?;
        Ok(map)
    }

    /// Keeps a map open, to be pinned again.
    fn decide(&mut self, name: &str, map: &KernelMap) -> Result<(), MapError> {
        let fd = map.try_clone_fd().map_err(|source| MapError::Open {
            map: name.to_owned(),
            path: self.current(name),
            source,
        })?;
        self.decided.insert(name.to_owned(), fd);
        Ok(())
    }

    /// Moves the pin of a replaced map to the new one, with the entries that programs made in the old one meanwhile.
    fn take_over(&mut self, name: &str, temporary: &Path) -> Result<(), MapError> {
        let path = self.directory().join(name);
        self.carry_new(name, temporary)?;
        self.carried.remove(name);
        take_over(name, temporary, &path)
    }

    fn carry_new(&self, name: &str, temporary: &Path) -> Result<(), MapError> {
        let Some(old) = self.carried.get(name) else {
            return Ok(());
        };
        let map = KernelMap::open(name, temporary)?;
        carry::carry_new(old, &map).map_err(|source| walk(name, source))?;
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        self.root.join("tc/globals")
    }

    /// Pins a map of this process if its pin is gone; false if it is there.
    fn pin_again(&self, name: &str) -> Result<bool, MapError> {
        let path = self.current(name);
        let Some(fd) = self.decided.get(name) else {
            return Ok(false);
        };
        if path.symlink_metadata().is_ok() {
            return Ok(false);
        }
        make_directory(&self.directory())?;
        pin_fd(name, fd.as_fd(), &path)?;
        Ok(true)
    }

    /// Where the newest map of this name is pinned.
    fn current(&self, name: &str) -> PathBuf {
        self.pending
            .get(name)
            .cloned()
            .unwrap_or_else(|| self.directory().join(name))
    }
}

impl Hold {
    /// The programs are attached: with the last hold, new maps take over their pins.
    ///
    /// # Errors
    ///
    /// [`MapError::Pin`] names the first map whose pin could not be replaced; the others are.
    pub fn release(mut self) -> Result<(), MapError> {
        self.released = true;
        let mut state = self.store.state.lock();
        state.holds -= 1;
        // Programs that were replaced have recorded with their options.
        self.store.epoch.raise();
        if state.holds > 0 {
            return Ok(());
        }
        let pending = std::mem::take(&mut state.pending);
        let results: Vec<_> = pending
            .into_iter()
            .map(|(name, temporary)| state.take_over(&name, &temporary))
            .collect();
        results.into_iter().collect()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.released {
            let mut state = self.store.state.lock();
            state.holds -= 1;
        }
    }
}

fn walk(name: &str, source: io::Error) -> MapError {
    MapError::Walk {
        map: name.to_owned(),
        source,
    }
}

fn make_directory(path: &Path) -> Result<(), MapError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|source| MapError::Directory {
            path: path.to_owned(),
            source,
        })
}

/// How a pinned map differs from what is wanted, inner maps included.
fn differences(spec: &RawSpec, map: &KernelMap) -> Result<Mismatch, MapError> {
    let mut mismatch = spec.differences(&map.info());
    if mismatch.is_empty()
        && let Some(inner) = spec.inner
        && !map.accepts_inner()?
    {
        mismatch.compare("size of the inner maps other than", inner.value_size, 0);
    }
    Ok(mismatch)
}

fn pin(name: &str, map: &KernelMap, path: &Path) -> Result<(), MapError> {
    map.fd().map_or(Ok(()), |fd| pin_fd(name, fd, path))
}

fn pin_fd(name: &str, map: BorrowedFd<'_>, path: &Path) -> Result<(), MapError> {
    sys::obj_pin(map, path).map_err(|source| MapError::Pin {
        map: name.to_owned(),
        path: path.to_owned(),
        source,
    })
}

fn remove(name: &str, path: &Path) -> Result<bool, MapError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(MapError::Unpin {
            map: name.to_owned(),
            path: path.to_owned(),
            source,
        }),
    }
}

fn take_over(name: &str, temporary: &Path, path: &Path) -> Result<(), MapError> {
    fs::rename(temporary, path).map_err(|source| MapError::Pin {
        map: name.to_owned(),
        path: path.to_owned(),
        source,
    })
}
