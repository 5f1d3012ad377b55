// SPDX-License-Identifier: Apache-2.0

//! The directory of pinned maps: create, open, replace.
//!
//! All maps of the datapath are pinned in `<root>/tc/globals` by their full names. A pinned map whose type,
//! sizes or flags are not what is wanted belongs to another version or configuration. Programs still use it,
//! so it stays pinned while a new map grows beside it under a temporary name; once all programs run with
//! the new one it takes over the pin. A [`Hold`] says that somebody is going to attach programs: while one
//! is held, take-overs wait for [`Hold::release`].

use std::{
    collections::{HashMap, HashSet},
    fmt, fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    map::{Map, MapError, MapSpec, MapTypes, Mismatch, NestedMap, NestedSpec, Plain, RawMap, Shape},
    syscall as sys,
};

/// Ends the name of a map that waits for its pin.
const PENDING: &str = ":new";

/// The maps pinned below one BPF file system. Cheap to share; makes no system call until it is used.
#[derive(Debug)]
pub struct MapStore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    root: PathBuf,
    holds: usize,
    /// Maps that wait for their pins: name → where they are pinned meanwhile.
    pending: HashMap<String, PathBuf>,
    /// Maps that this process has decided on: whoever asks again gets the same one.
    decided: HashSet<String>,
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
            decided: HashSet::new(),
            types: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
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

    /// Gives names to the fields of maps that are made from now on.
    pub fn describe(&self, types: MapTypes) {
        self.state.lock().types = Some(types);
    }

    /// Directory of the pins.
    pub fn directory(&self) -> PathBuf {
        self.state.lock().directory()
    }

    /// Where the map `name` is pinned.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Opens the pinned map, or creates and pins it. A pinned one that does not fit is replaced, see the
    /// [module](self); within this process all callers get the same map.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn open_or_create<K: Plain, V: Plain>(&self, spec: &MapSpec<K, V>) -> Result<Map<K, V>, MapError> {
        let raw = self.provide(spec.name(), &spec.shape(), None, |_| Ok(Mismatch::default()))?;
        Map::from_raw(raw)
    }

    /// As [`open_or_create`](Self::open_or_create), for maps that user space does not read by [`Map`] (per-CPU
    /// maps, event rings): returns the descriptor.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn ensure<K, V>(&self, spec: &MapSpec<K, V>) -> Result<OwnedFd, MapError> {
        Ok(self
            .provide(spec.name(), &spec.shape(), None, |_| Ok(Mismatch::default()))?
            .fd)
    }

    /// As [`open_or_create`](Self::open_or_create), for maps of maps. Another table size counts as a
    /// difference.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the directory, the map or its pin cannot be made.
    pub fn open_or_create_nested<K: Plain, E: Plain>(
        &self,
        spec: &NestedSpec<K, E>,
    ) -> Result<NestedMap<K, E>, MapError> {
        let inner = spec.create_inner()?;
        let check = |path: &Path| {
            let map = NestedMap::from_raw(RawMap::open(spec.name(), path)?, spec)?;
            let mut mismatch = Mismatch::default();
            if !map.accepts_tables()? {
                mismatch.compare("size of the inner maps other than", spec.elements(), 0);
            }
            Ok(mismatch)
        };
        let raw = self.provide(spec.name(), &spec.shape(), Some(inner.as_fd()), check)?;
        NestedMap::from_raw(raw, spec)
    }

    /// Opens a pinned map as it is, for readers.
    ///
    /// # Errors
    ///
    /// [`MapError::Open`] if there is none ([`MapError::is_missing`]), [`MapError::Incompatible`] if keys
    /// or values have other sizes.
    pub fn open<K: Plain, V: Plain>(&self, name: &str) -> Result<Map<K, V>, MapError> {
        let path = self.state.lock().current(name);
        Map::open(name, &path)
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
        let directory = state.directory();
        remove(name, &directory.join(format!("{name}{PENDING}")))?;
        remove(name, &directory.join(name))
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

    fn provide(
        &self,
        name: &str,
        shape: &Shape,
        inner: Option<BorrowedFd<'_>>,
        check: impl FnOnce(&Path) -> Result<Mismatch, MapError>,
    ) -> Result<RawMap, MapError> {
        let mut state = self.state.lock();
        if state.decided.contains(name) {
            match RawMap::open(name, &state.current(name)) {
                // Somebody has removed the pin: begin again.
                Err(error) if error.is_missing() => {}
                other => return other,
            }
        }
        let raw = state.provide(name, shape, inner, check)?;
        state.decided.insert(name.to_owned());
        Ok(raw)
    }
}

impl State {
    fn provide(
        &mut self,
        name: &str,
        shape: &Shape,
        inner: Option<BorrowedFd<'_>>,
        check: impl FnOnce(&Path) -> Result<Mismatch, MapError>,
    ) -> Result<RawMap, MapError> {
        let directory = self.directory();
        make_directory(&directory)?;
        let (path, temporary) = (directory.join(name), directory.join(format!("{name}{PENDING}")));
        // Left by a process that ended between creating a map and handing it the pin.
        remove(name, &temporary)?;

        let reason = match RawMap::open(name, &path) {
            Ok(raw) => {
                let mut mismatch = shape.differences(&raw.info);
                if mismatch.is_empty() {
                    mismatch = check(&path)?;
                }
                if mismatch.is_empty() {
                    return Ok(raw);
                }
                mismatch.to_string()
            }
            Err(error) if error.is_missing() => {
                let fd = shape.create_described(name, inner, self.types.as_ref())?;
                pin(name, fd.as_fd(), &path)?;
                return RawMap::new(name, fd);
            }
            Err(error @ MapError::NotMap { .. }) => error.to_string(),
            Err(error) => return Err(error),
        };

        let fd = shape.create_described(name, inner, self.types.as_ref())?;
        pin(name, fd.as_fd(), &temporary)?;
        tracing::warn!(
            map = name,
            reason,
            "replacing an incompatible pinned map, its entries are lost"
        );
        if self.holds > 0 {
            self.pending.insert(name.to_owned(), temporary);
        } else {
            take_over(name, &temporary, &path)?;
        }
        RawMap::new(name, fd)
    }

    fn directory(&self) -> PathBuf {
        self.root.join("tc/globals")
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
        if state.holds > 0 {
            return Ok(());
        }
        let directory = state.directory();
        let results: Vec<_> = state
            .pending
            .drain()
            .map(|(name, temporary)| take_over(&name, &temporary, &directory.join(&name)))
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

fn pin(name: &str, map: BorrowedFd<'_>, path: &Path) -> Result<(), MapError> {
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
