// SPDX-License-Identifier: Apache-2.0

//! The store: one table of objects, and for every resource the history that watches follow.
//!
//! The revision of the table is the resource version of the API: each write counts it up and stamps the object
//! with it. Writers are serialised; readers see snapshots and never wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use compact_str::CompactString;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use crate::gvr::Gvr;
use crate::history::{Event, EventKind, Log};
use crate::kinds::Kind;
use crate::object;
use crate::table::{Following, Rows, RowsSnapshot, RowsTransaction, TrackedObject};

/// Which of the two clients an object belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// `*`: compact core types, Cilium's own, extensions.
    Slim,
    /// `k8s`: the full core types.
    Core,
}

impl Domain {
    /// Its name in row ids and messages.
    pub fn name(self) -> &'static str {
        match self {
            Domain::Slim => "*",
            Domain::Core => "k8s",
        }
    }
}

/// Where objects live. Cheap to clone; clones share.
#[derive(Clone)]
pub struct Tracker(Arc<Inner>);

struct Inner {
    rows: Rows,
    writer: Mutex<()>,
    /// Changes up to this revision are in the logs.
    published: AtomicU64,
    logs: RwLock<HashMap<(Domain, Gvr), Arc<Log>>>,
    seen: RwLock<BTreeSet<(Domain, String, Gvr)>>,
    /// Events kept of each resource.
    history: usize,
    /// Deleted objects leave a row behind.
    keeps_tombstones: bool,
}

impl Tracker {
    /// A store over the table `rows` that keeps the last `history` events of each resource, and rows of deleted
    /// objects if `keeps_tombstones`.
    pub fn new(rows: Rows, history: usize, keeps_tombstones: bool) -> Self {
        Tracker(Arc::new(Inner {
            published: AtomicU64::new(rows.revision()),
            rows,
            writer: Mutex::new(()),
            logs: RwLock::default(),
            seen: RwLock::default(),
            history: history.max(1),
            keeps_tombstones,
        }))
    }

    /// The resource version of the last write.
    pub fn revision(&self) -> u64 {
        self.0.rows.revision()
    }

    /// Resources that were written, listed or watched so far, with the text that orders them.
    pub fn resources(&self) -> Vec<(Domain, Gvr)> {
        self.0
            .seen
            .read()
            .iter()
            .map(|(domain, _, gvr)| (*domain, gvr.clone()))
            .collect()
    }

    /// Remembers that there is interest in a resource.
    pub fn note(&self, domain: Domain, gvr: &Gvr) {
        let entry = (domain, gvr.to_string(), gvr.clone());
        if !self.0.seen.read().contains(&entry) {
            self.0.seen.write().insert(entry);
        }
    }

    /// The live object of this name.
    pub fn get(&self, domain: Domain, gvr: &Gvr, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let row = self.0.rows.get(&id(domain, gvr, namespace, name))?;
        (!row.deleted).then(|| row.object.clone())
    }

    /// True if an object of this name exists or existed.
    pub fn has_row(&self, domain: Domain, gvr: &Gvr, namespace: &str, name: &str) -> bool {
        self.0.rows.get(&id(domain, gvr, namespace, name)).is_some()
    }

    /// Live objects ordered by namespace and name, and the resource version they are from.
    pub fn list(&self, domain: Domain, gvr: &Gvr, namespace: Option<&str>) -> (Vec<Arc<Value>>, u64) {
        let (now, objects) = (self.snapshot(), Objects::new(domain, gvr, namespace));
        let found = now.objects(&objects, "").map(|(_, object)| object.clone());
        (found.collect(), now.revision())
    }

    /// All objects as they are now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.rows.snapshot())
    }

    /// Runs `f` alone; its writes become visible together, or not at all if it fails.
    pub fn write<R, E>(&self, f: impl FnOnce(&mut Transaction<'_>) -> Result<R, E>) -> Result<R, E> {
        self.attempt(true, f)
    }

    /// Like [`Tracker::write`], but forgets the writes unless `commit`.
    pub fn attempt<R, E>(
        &self,
        commit: bool,
        f: impl FnOnce(&mut Transaction<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let _alone = self.0.writer.lock();
        let mut tx = Transaction {
            tracker: self,
            rows: self.0.rows.write(),
            events: Vec::new(),
            expire: Vec::new(),
        };
        let result = f(&mut tx)?;
        if !commit {
            return Ok(result);
        }
        let Transaction {
            rows, events, expire, ..
        } = tx;
        let revision = rows.commit();
        for (domain, gvr) in expire {
            self.log(domain, &gvr).expire(revision);
        }
        for (domain, gvr, event) in events {
            self.note(domain, &gvr);
            self.log(domain, &gvr).push(event, self.0.history);
        }
        self.0.published.store(revision, Ordering::Release);
        Ok(result)
    }

    /// Follows the objects of all resources: first all there are, then what changes.
    pub fn follow(&self) -> Following {
        self.0.rows.follow()
    }

    /// The revision up to which watches can see all changes.
    pub(crate) fn published(&self) -> u64 {
        self.0.published.load(Ordering::Acquire)
    }

    /// The history of a resource.
    pub(crate) fn log(&self, domain: Domain, gvr: &Gvr) -> Arc<Log> {
        let key = (domain, gvr.clone());
        if let Some(log) = self.0.logs.read().get(&key) {
            return log.clone();
        }
        self.0.logs.write().entry(key).or_default().clone()
    }

    /// Forgets the history of all resources, as a compaction of etcd does: watches from older versions fail.
    pub fn compact(&self) {
        let _alone = self.0.writer.lock();
        let revision = self.revision();
        for log in self.0.logs.read().values() {
            log.compact(revision);
        }
    }

    /// Ends the open watches of all resources with "too old resource version".
    pub fn expire_watches(&self) {
        let _alone = self.0.writer.lock();
        let revision = self.revision();
        for log in self.0.logs.read().values() {
            log.expire(revision);
        }
    }
}

/// The objects of a resource, in one namespace or in all.
pub(crate) struct Objects {
    /// What the ids of the resource begin with.
    resource: CompactString,
    /// What those of the namespace do.
    ids: CompactString,
}

impl Objects {
    pub(crate) fn new(domain: Domain, gvr: &Gvr, namespace: Option<&str>) -> Self {
        Self {
            resource: prefix(domain, gvr, None),
            ids: prefix(domain, gvr, namespace),
        }
    }
}

/// All objects at one moment.
pub(crate) struct Snapshot(RowsSnapshot);

impl Snapshot {
    pub(crate) fn revision(&self) -> u64 {
        self.0.revision()
    }

    /// Live objects from the place `from` on, `<namespace>/<name>`, with their places and ordered by them.
    pub(crate) fn objects<'a>(
        &'a self,
        of: &'a Objects,
        from: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Arc<Value>)> + use<'a> {
        let from = compact_str::format_compact!("{}{from}", of.resource).max(of.ids.clone());
        let places = self.0.objects(&of.ids, &from);
        places.map(|(id, object)| (&id[of.resource.len()..], object))
    }
}

/// Writes that become visible together.
pub struct Transaction<'a> {
    tracker: &'a Tracker,
    rows: RowsTransaction,
    events: Vec<(Domain, Gvr, Event)>,
    expire: Vec<(Domain, Gvr)>,
}

impl Transaction<'_> {
    /// The live object of this name, writes of this transaction included.
    pub fn get(&self, domain: Domain, gvr: &Gvr, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let row = self.rows.get(&id(domain, gvr, namespace, name))?;
        (!row.deleted).then(|| row.object.clone())
    }

    /// Live objects, writes of this transaction included.
    pub fn list(&self, domain: Domain, gvr: &Gvr, namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.rows.list(&prefix(domain, gvr, namespace))
    }

    /// Inserts or replaces an object. It is stamped with the resource version of this write.
    pub fn put(&mut self, domain: Domain, kind: &Kind, mut value: Value) -> Arc<Value> {
        let gvr = kind.stored();
        let revision = self.rows.revision() + 1;
        object::set_metadata(&mut value, "resourceVersion", &revision.to_string());
        let (namespace, name) = (
            object::namespace(&value).to_owned(),
            object::name(&value).to_owned(),
        );
        let previous = self.get(domain, &gvr, &namespace, &name);
        let object = Arc::new(value);
        self.rows.put(TrackedObject {
            id: id(domain, &gvr, &namespace, &name),
            deleted: false,
            type_name: kind.go_type().into(),
            object: object.clone(),
        });
        let kind = if previous.is_some() {
            EventKind::Modified
        } else {
            EventKind::Added
        };
        self.events.push((
            domain,
            gvr,
            Event {
                revision,
                kind,
                object: object.clone(),
                previous,
            },
        ));
        object
    }

    /// Deletes an object; returns its last state, stamped with the resource version of the deletion.
    pub fn delete(&mut self, domain: Domain, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let gvr = kind.stored();
        let previous = self.get(domain, &gvr, namespace, name)?;
        let revision = self.rows.revision() + 1;
        let mut last = (*previous).clone();
        object::set_metadata(&mut last, "resourceVersion", &revision.to_string());
        let object = Arc::new(last);
        let id = id(domain, &gvr, namespace, name);
        if self.tracker.0.keeps_tombstones {
            let type_name = kind.go_type().into();
            self.rows.put(TrackedObject {
                id,
                deleted: true,
                type_name,
                object: object.clone(),
            });
        } else {
            self.rows.remove(&id);
        }
        let event = Event {
            revision,
            kind: EventKind::Deleted,
            object: object.clone(),
            previous: Some(previous),
        };
        self.events.push((domain, gvr, event));
        Some(object)
    }

    /// Ends the open watches of a resource when this transaction commits; returns how many there are.
    pub fn expire_watches(&mut self, domain: Domain, gvr: &Gvr) -> usize {
        self.expire.push((domain, gvr.clone()));
        self.tracker.log(domain, gvr).watchers()
    }

    /// The resource version of the last write.
    pub fn revision(&self) -> u64 {
        self.rows.revision()
    }
}

fn prefix(domain: Domain, gvr: &Gvr, namespace: Option<&str>) -> CompactString {
    match namespace {
        Some(namespace) => compact_str::format_compact!("{};{gvr};{namespace}/", domain.name()),
        None => compact_str::format_compact!("{};{gvr};", domain.name()),
    }
}

fn id(domain: Domain, gvr: &Gvr, namespace: &str, name: &str) -> CompactString {
    compact_str::format_compact!("{};{gvr};{namespace}/{name}", domain.name())
}
