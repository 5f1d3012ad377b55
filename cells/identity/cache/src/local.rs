// SPDX-License-Identifier: Apache-2.0

//! Identities of this node alone: networks, DNS names, nodes with identities of their own.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use compact_str::CompactString;
use hive::{JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_identity::{Labels, NumericIdentity, Scope};
use statedb::{Db, Table, WriteTarget, WriteTxn};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::table::{IdentitySource, ObjectFacts, SecurityIdentity, with_reserved};
use crate::writer::Writer;

/// How long an identity without users stays: maps and connections may still have its id.
const LINGER: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Labels of the global scope: allocate them for the cluster.
    #[error("`{0}` are not labels of an identity of this node")]
    Global(Arc<Labels>),
    /// Fewer networks and DNS names must be selected by policies.
    #[error("identity of `{0}`: no id of this node is free")]
    Exhausted(Arc<Labels>),
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

/// Allocates identities of the scopes [`Local`](Scope::Local) and [`RemoteNode`](Scope::RemoteNode), and writes them to table
/// `identities`. Labels have one id while it is held, and for half a minute more. Ids count up: one that is free
/// again is the last to be allocated. Cheap to clone.
#[derive(Clone, hive::Value)]
pub struct LocalIdentities(Arc<Inner>);

/// A use of a local identity. Clones are the same use; it is released when the last one is dropped.
#[derive(Clone)]
pub struct LocalIdentity(Arc<Use>);

struct Use {
    id: NumericIdentity,
    labels: Arc<Labels>,
    inner: Weak<Inner>,
}

struct Inner {
    writer: Writer,
    state: Mutex<State>,
    /// Labels of dropped uses. A use may be dropped wherever a row is: nothing else is locked then.
    dropped: Mutex<Vec<Arc<Labels>>>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    by_labels: HashMap<Arc<Labels>, Entry>,
    /// Ids that are allocated, or that maps of an earlier run have.
    taken: HashSet<NumericIdentity>,
    earlier: HashSet<NumericIdentity>,
    last: HashMap<Scope, NumericIdentity>,
}

struct Entry {
    id: NumericIdentity,
    used: Weak<Use>,
    unused_since: Option<Instant>,
}

impl State {
    fn is_free(&self, id: NumericIdentity) -> bool {
        !self.taken.contains(&id) && !self.earlier.contains(&id)
    }

    fn choose(&mut self, scope: Scope, wanted: Option<NumericIdentity>) -> Option<NumericIdentity> {
        let wanted = wanted.filter(|id| id.scope() == Some(scope) && !self.taken.contains(id));
        if wanted.is_some() {
            return wanted;
        }
        let (first, last) = scope.first_and_last();
        let (first, last) = (first.get(), last.get());
        let next = self.last.get(&scope).map_or(first, |id| id.get() + 1);
        let mut ids = (next..=last).chain(first..next).map(NumericIdentity::new);
        let id = ids.find(|id| self.is_free(*id))?;
        self.last.insert(scope, id);
        Some(id)
    }
}

impl LocalIdentities {
    pub fn new(writer: Writer) -> Self {
        Self(Arc::new(Inner {
            writer,
            state: Mutex::default(),
            dropped: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Identities in a table of their own, which is returned.
    pub fn with_table(db: &Db) -> Result<(Self, Table<SecurityIdentity>), statedb::Error> {
        let table = with_reserved(db)?;
        let reader = table.reader();
        Ok((Self::new(Writer::new(db.clone(), table)), reader))
    }

    /// The table of identities, for transactions with others.
    pub fn table(&self) -> &dyn WriteTarget {
        self.0.writer.table()
    }

    /// Returns the identity of some labels, which is in the table then.
    ///
    /// # Errors
    ///
    /// [`LocalError`] for labels of the global scope, and without a free id.
    pub fn allocate(&self, labels: &Arc<Labels>) -> Result<LocalIdentity, LocalError> {
        let mut txn = self.0.writer.write();
        let allocated = self.allocate_in(&mut txn, labels, None)?;
        txn.commit();
        Ok(allocated)
    }

    /// [`allocate`](Self::allocate) within a transaction. A new identity has the id `wanted`, that of an earlier run, if it is free.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate), and if the transaction is not one on [`table`](Self::table).
    pub fn allocate_in(
        &self,
        txn: &mut WriteTxn,
        labels: &Arc<Labels>,
        wanted: Option<NumericIdentity>,
    ) -> Result<LocalIdentity, LocalError> {
        let scope = labels.scope();
        if scope == Scope::Global {
            return Err(LocalError::Global(labels.clone()));
        }
        // Locked within transactions only, everywhere.
        let mut state = self.0.state.lock();
        let known = state.by_labels.get(labels);
        let known = known.map(|entry| (entry.id, entry.used.upgrade()));
        let (id, used) = match known {
            Some(known) => known,
            None => {
                let id = state.choose(scope, wanted);
                (id.ok_or_else(|| LocalError::Exhausted(labels.clone()))?, None)
            }
        };
        // Also if the transaction that allocated it has failed.
        self.0.insert(txn, id, labels)?;
        if let Some(used) = used {
            return Ok(LocalIdentity(used));
        }
        let used = Arc::new(Use {
            id,
            labels: labels.clone(),
            inner: Arc::downgrade(&self.0),
        });
        let entry = Entry {
            id,
            used: Arc::downgrade(&used),
            unused_since: None,
        };
        state.taken.insert(id);
        state.by_labels.insert(labels.clone(), entry);
        Ok(LocalIdentity(used))
    }

    /// Allocates none of these ids unless one is wanted: maps of an earlier run have them.
    pub fn keep_earlier(&self, ids: impl IntoIterator<Item = NumericIdentity>) {
        self.0.state.lock().earlier = ids.into_iter().collect();
    }

    /// No map has an id of an earlier run any more.
    pub fn forget_earlier(&self) {
        self.0.state.lock().earlier = HashSet::new();
    }

    pub(crate) fn spawn(&self, jobs: &Jobs) -> Result<(), SpawnError> {
        jobs.keep("release-local", self.0.clone(), Inner::release)
    }
}

impl Inner {
    fn insert(
        &self,
        txn: &mut WriteTxn,
        id: NumericIdentity,
        labels: &Arc<Labels>,
    ) -> Result<(), statedb::Error> {
        if self.writer.has(txn, id) {
            return Ok(());
        }
        let row = SecurityIdentity {
            id,
            source: IdentitySource::Local,
            cluster: CompactString::default(),
            labels: labels.clone(),
            object: ObjectFacts::default(),
        };
        self.writer.upsert(txn, row).map(drop)
    }

    /// Deletes identities that have been unused for a while.
    async fn release(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        loop {
            let (count, next) = self.sweep(Instant::now())?;
            cx.health.ok(format!("{count} identities"));
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Returns how many identities there are, and when the next one may be deleted.
    fn sweep(&self, now: Instant) -> Result<(usize, Option<Instant>), statedb::Error> {
        let due = |entry: &Entry| entry.unused_since.map(|since| since + LINGER);
        let next = |state: &State| state.by_labels.values().filter_map(due).min();
        let dropped = std::mem::take(&mut *self.dropped.lock());
        let first = {
            let mut state = self.state.lock();
            for labels in dropped {
                if let Some(entry) = state.by_labels.get_mut(&labels)
                    && entry.used.strong_count() == 0
                {
                    entry.unused_since.get_or_insert(now);
                }
            }
            next(&state)
        };
        if first.is_some_and(|first| first <= now) {
            let mut txn = self.writer.write();
            let mut state = self.state.lock();
            let is_over = |entry: &Entry| due(entry).is_some_and(|due| due <= now);
            let over = state.by_labels.extract_if(|_, entry| is_over(entry));
            let over: Vec<NumericIdentity> = over.map(|(_, entry)| entry.id).collect();
            for id in over {
                state.taken.remove(&id);
                self.writer.delete(&mut txn, IdentitySource::Local, id)?;
            }
            txn.commit();
        }
        let state = self.state.lock();
        Ok((state.by_labels.len(), next(&state)))
    }
}

impl LocalIdentity {
    pub fn id(&self) -> NumericIdentity {
        self.0.id
    }

    pub fn labels(&self) -> &Arc<Labels> {
        &self.0.labels
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.dropped.lock().push(self.labels.clone());
            inner.changed.notify_one();
        }
    }
}

impl PartialEq for LocalIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl fmt::Debug for LocalIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.id(), self.labels())
    }
}

impl fmt::Debug for LocalIdentities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.state.lock().by_labels.len();
        f.debug_struct("LocalIdentities").field("count", &count).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    struct Node {
        identities: LocalIdentities,
        db: Db,
        table: Table<SecurityIdentity>,
    }

    fn node() -> Node {
        let db = Db::new();
        let (identities, table) = LocalIdentities::with_table(&db).unwrap();
        Node {
            identities,
            table,
            db,
        }
    }

    impl Node {
        fn allocate(&self, labels: &str, wanted: Option<u32>) -> LocalIdentity {
            let labels = Arc::new(labels.parse().unwrap());
            let wanted = wanted.map(NumericIdentity::new);
            let mut txn = self.db.write(&[self.identities.table()]);
            let allocated = self.identities.allocate_in(&mut txn, &labels, wanted).unwrap();
            txn.commit();
            allocated
        }

        fn rows(&self) -> Vec<String> {
            let snapshot = self.db.read();
            let rows = self.table.all(&snapshot);
            rows.filter(|row| row.source == IdentitySource::Local)
                .map(|row| format!("{} {}", row.id, row.labels))
                .collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn labels_have_one_id_until_some_time_after_the_last_use() {
        let node = node();
        let inner = node.identities.0.clone();
        let first = node.allocate("cidr:10.0.0.0/8;reserved:world;", None);
        let again = node.allocate("reserved:world;cidr:10.0.0.0/8;", None);
        let peer = node.allocate("reserved:remote-node;node:zone=a;", None);
        assert_eq!((first.id().get(), peer.id().get()), (0x0100_0001, 0x0200_0001));
        assert_eq!(first, again);
        assert_eq!(node.rows()[0], "16777217 cidr:10.0.0.0/8=;reserved:world=;");

        drop((first, again, peer));
        inner.sweep(Instant::now()).unwrap();
        advance(LINGER / 2).await;
        let back = node.allocate("cidr:10.0.0.0/8;reserved:world;", None);
        assert_eq!(back.id().get(), 0x0100_0001);
        advance(LINGER / 2).await;
        let (count, next) = inner.sweep(Instant::now()).unwrap();

        assert_eq!((count, next), (1, None));
        assert_eq!(node.rows(), ["16777217 cidr:10.0.0.0/8=;reserved:world=;"]);
    }

    #[test]
    fn ids_of_an_earlier_run_are_only_for_who_had_them() {
        let node = node();
        let earlier = [0x0100_0001, 0x0100_0003].map(NumericIdentity::new);
        node.identities.keep_earlier(earlier);
        let ids = |wanted| node.allocate("fqdn:example.com;", wanted).id().get();
        assert_eq!(ids(Some(0x0100_0003)), 0x0100_0003);

        let other = node.allocate("cidr:10.0.0.0/8;", None);
        let refused = node.allocate("cidr:10.0.0.0/9;", Some(other.id().get()));
        assert_eq!((other.id().get(), refused.id().get()), (0x0100_0002, 0x0100_0004));

        node.identities.forget_earlier();
        let global = Arc::new("k8s:app=cart;".parse().unwrap());
        let error = node.identities.allocate(&global).unwrap_err().to_string();
        assert_eq!(
            error,
            "`k8s:app=cart;` are not labels of an identity of this node"
        );
    }
}
