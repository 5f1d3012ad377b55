// SPDX-License-Identifier: Apache-2.0

//! Watches: closed once by the first commit that touches what was read.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned};

use crate::key::KeyBuf;

/// Closes when the answer of a query changes.
///
/// Closes exactly once, at the first commit after the snapshot of the query that changes an object found by it, or
/// adds one to the range it looked at. Reading again returns a new watch.
///
/// ```
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let snapshot = db.read();
/// let (found, watch) = pods.get_watch(&snapshot, BY_NAME.key("web-0"));
/// assert!(found.is_none());
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-1", "a"))?;
/// txn.commit();
/// assert!(!watch.is_closed(), "another object");
///
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// txn.commit();
/// assert!(watch.is_closed());
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    token: CancellationToken,
    /// Where it is registered: the number of the cell distinguishes it from a later one at the same place.
    place: Option<(Weak<Watches>, Place, u64)>,
}

impl Watch {
    /// Waits until the watch is closed.
    pub fn closed(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }

    /// Like [`Watch::closed`] but owns the watch's token.
    pub fn closed_owned(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }

    /// Returns whether the watch is closed.
    pub fn is_closed(&self) -> bool {
        self.token.is_cancelled()
    }

    /// A watch that is closed already.
    pub(crate) fn already_closed() -> Self {
        let token = CancellationToken::new();
        token.cancel();
        Self { token, place: None }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("closed", &self.is_closed())
            .finish()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((watches, place, cell)) = self.place.take()
            && let Some(watches) = watches.upgrade()
        {
            watches.forget(&place, cell);
        }
    }
}

/// What a watch waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Any change of the table.
    Table,
    /// The set of initialisers.
    Initializers,
    /// A stored key of the index at this position.
    Exact(usize, KeyBuf),
    /// Stored keys starting so.
    Prefix(usize, KeyBuf),
}

struct Cell {
    number: u64,
    token: CancellationToken,
    watchers: usize,
}

/// Open watches of one table.
#[derive(Default)]
pub(crate) struct Watches {
    cells: Mutex<Cells>,
    /// Watches on keys and prefixes: writers log what they touch only if there are any.
    keyed: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Cells {
    by_place: HashMap<Place, Cell, foldhash::fast::RandomState>,
    /// Lengths of the watched prefixes by index, with the number of prefixes of that length.
    prefix_lengths: Vec<(usize, usize, usize)>,
    keyed: usize,
    next: u64,
}

impl Watches {
    /// Returns whether writers must log the keys that they touch.
    #[inline]
    pub(crate) fn wants_keys(&self) -> bool {
        self.keyed.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, Cells> {
        self.cells.lock()
    }

    /// Adds a watch; `cells` is the locked inner part of `self`.
    pub(crate) fn watch(self: &Arc<Self>, cells: &mut Cells, place: Place) -> Watch {
        let (number, token) = cells.add(&place);
        self.keyed.store(cells.keyed, Ordering::Relaxed);
        Watch {
            token,
            place: Some((Arc::downgrade(self), place, number)),
        }
    }

    fn forget(&self, place: &Place, number: u64) {
        let mut cells = self.cells.lock();
        cells.forget(place, number);
        self.keyed.store(cells.keyed, Ordering::Relaxed);
    }

    /// To be called after closing watches, with the lock still held.
    pub(crate) fn publish(&self, cells: &Cells) {
        self.keyed.store(cells.keyed, Ordering::Relaxed);
    }
}

impl Cells {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    pub(crate) fn has_keyed(&self) -> bool {
        self.keyed > 0
    }

    fn add(&mut self, place: &Place) -> (u64, CancellationToken) {
        if let Some(cell) = self.by_place.get_mut(place) {
            cell.watchers += 1;
            return (cell.number, cell.token.clone());
        }
        let token = CancellationToken::new();
        let number = self.next;
        self.next += 1;
        self.by_place.insert(
            place.clone(),
            Cell {
                number,
                token: token.clone(),
                watchers: 1,
            },
        );
        if let Place::Prefix(index, prefix) = place {
            let len = prefix.as_bytes().len();
            match self
                .prefix_lengths
                .iter_mut()
                .find(|(i, l, _)| i == index && *l == len)
            {
                Some((_, _, count)) => *count += 1,
                None => self.prefix_lengths.push((*index, len, 1)),
            }
        }
        if matches!(place, Place::Exact(..) | Place::Prefix(..)) {
            self.keyed += 1;
        }
        (number, token)
    }

    fn forget(&mut self, place: &Place, number: u64) {
        let Some(cell) = self.by_place.get_mut(place) else {
            return;
        };
        if cell.number != number {
            return;
        }
        cell.watchers -= 1;
        if cell.watchers == 0 {
            self.remove(place);
        }
    }

    fn remove(&mut self, place: &Place) -> Option<CancellationToken> {
        let cell = self.by_place.remove(place)?;
        if let Place::Prefix(index, prefix) = place {
            let len = prefix.as_bytes().len();
            if let Some(at) = self
                .prefix_lengths
                .iter()
                .position(|(i, l, _)| i == index && *l == len)
            {
                self.prefix_lengths[at].2 -= 1;
                if self.prefix_lengths[at].2 == 0 {
                    self.prefix_lengths.swap_remove(at);
                }
            }
        }
        if matches!(place, Place::Exact(..) | Place::Prefix(..)) {
            self.keyed -= 1;
        }
        Some(cell.token)
    }

    /// Takes the watch of one place out, to be closed after the lock is released.
    pub(crate) fn take(&mut self, place: &Place, closed: &mut Vec<CancellationToken>) {
        closed.extend(self.remove(place));
    }

    /// Takes the watches out that a change of a stored key closes.
    pub(crate) fn take_touched(&mut self, index: usize, key: &KeyBuf, closed: &mut Vec<CancellationToken>) {
        self.take(&Place::Exact(index, key.clone()), closed);
        let mut at = 0;
        while let Some(&(i, len, _)) = self.prefix_lengths.get(at) {
            let before = self.prefix_lengths.len();
            if i == index
                && let Some(prefix) = key.as_bytes().get(..len)
            {
                self.take(&Place::Prefix(index, KeyBuf::new(prefix)), closed);
            }
            if self.prefix_lengths.len() == before {
                at += 1;
            }
        }
    }

    /// Takes the keyed watches out for which `changed` holds.
    pub(crate) fn take_if(&mut self, changed: impl Fn(&Place) -> bool, closed: &mut Vec<CancellationToken>) {
        let places: Vec<Place> = self
            .by_place
            .keys()
            .filter(|place| matches!(place, Place::Exact(..) | Place::Prefix(..)) && changed(place))
            .cloned()
            .collect();
        for place in &places {
            self.take(place, closed);
        }
    }
}

/// Waits for several watches at once.
///
/// Closed watches leave the set, so that waiting again reports only new closings.
///
/// ```
/// use std::time::Duration;
///
/// use statedb::WatchSet;
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # const BY_NODE: Index<Pod, str> = Index::new("node", |pod, keys| keys.add(&pod.node));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).index(BY_NODE).build_plain(&db)?;
/// let snapshot = db.read();
/// let mut watches = WatchSet::new();
/// let on_a = watches.add(pods.list_watch(&snapshot, BY_NODE.key("a")).1);
/// watches.add(pods.list_watch(&snapshot, BY_NODE.key("b")).1);
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, pod("web-0", "a"))?;
/// txn.commit();
///
/// assert_eq!(watches.wait(Duration::ZERO).await, [on_a]);
/// assert_eq!(watches.len(), 1, "closed watches leave the set");
/// watches.clear();
/// assert!(watches.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct WatchSet {
    next: u64,
    open: Vec<(WatchId, Watch)>,
}

/// Names a watch inside a [`WatchSet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(u64);

impl WatchSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a watch.
    pub fn add(&mut self, watch: Watch) -> WatchId {
        let id = WatchId(self.next);
        self.next += 1;
        self.open.push((id, watch));
        id
    }

    /// Drops all watches.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// Returns how many watches are in the set.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// True if the set holds no watch.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Waits until a watch is closed and `settle` longer to gather more; returns the closed ones, in the order added.
    /// Returns sooner once all are closed, and never if the set is empty.
    pub async fn wait(&mut self, settle: Duration) -> Vec<WatchId> {
        if self.open.is_empty() {
            return std::future::pending().await;
        }
        {
            let mut closings: FuturesUnordered<_> =
                self.open.iter().map(|(_, watch)| watch.closed()).collect();
            closings.next().await;
            if !settle.is_zero() {
                let rest = async { while closings.next().await.is_some() {} };
                let _ = tokio::time::timeout(settle, rest).await;
            }
        }
        let (closed, open) = self.open.drain(..).partition(|(_, watch)| watch.is_closed());
        self.open = open;
        let closed: Vec<(WatchId, Watch)> = closed;
        closed.into_iter().map(|(id, _)| id).collect()
    }
}
