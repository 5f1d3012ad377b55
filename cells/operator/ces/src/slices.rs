// SPDX-License-Identifier: Apache-2.0

//! Which endpoint is in which slice, and what the server has of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use skep_k8s_crds::endpoint::{CiliumEndpointSlice, CoreCiliumEndpoint};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{Metadata, Str};
use tokio::time::Instant;

const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxyz2456789";

/// A slice as the server has it.
#[derive(Debug, Clone, PartialEq)]
struct Stored {
    uid: Str,
    resource_version: Str,
    digest: u64,
}

#[derive(Debug, Default)]
struct Slice {
    namespace: Str,
    members: BTreeSet<Str>,
    stored: Option<Stored>,
    /// It is about to be deleted: no endpoint is added.
    is_closed: bool,
    inserted: usize,
    removed: usize,
    /// Writes in a row that failed.
    failures: u32,
}

#[derive(Debug)]
struct Placed {
    slice: Str,
    entry: Box<CoreCiliumEndpoint>,
}

/// What has to be written for a slice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    Create(CiliumEndpointSlice),
    /// With the resource version that it replaces.
    Update(CiliumEndpointSlice),
    Delete {
        name: Str,
        uid: Str,
    },
}

/// How a slice has changed since it was written last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) since: Instant,
    pub(crate) endpoints: usize,
    pub(crate) inserted: usize,
    pub(crate) removed: usize,
}

#[derive(Debug)]
pub(crate) struct Slices {
    limit: usize,
    endpoints: HashMap<ObjectKey, Placed>,
    slices: HashMap<Str, Slice>,
    /// Slices that may have to be written.
    changed: BTreeSet<Str>,
    /// When slices that wait to be written have changed.
    since: HashMap<Str, Instant>,
    has_endpoints: bool,
}

impl Slices {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            endpoints: HashMap::new(),
            slices: HashMap::new(),
            changed: BTreeSet::new(),
            since: HashMap::new(),
            has_endpoints: false,
        }
    }

    pub(crate) fn len(&self) -> (usize, usize) {
        (self.endpoints.len(), self.slices.len())
    }

    /// Slices that may have to be written, since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Str> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<&Str> {
        self.slices.get(name).map(|slice| &slice.namespace)
    }

    pub(crate) fn of_namespace(&self, namespace: &Str) -> impl Iterator<Item = &Str> {
        let slices = self.slices.iter();
        slices.filter_map(move |(name, slice)| (slice.namespace == *namespace).then_some(name))
    }

    fn mark(&mut self, name: Str) {
        self.since.entry(name.clone()).or_insert_with(Instant::now);
        self.changed.insert(name);
    }

    /// The server has this slice. Before the endpoints are listed its entries are taken over; later, entries that are not
    /// placed there are removed from it.
    pub(crate) fn observe(&mut self, object: &CiliumEndpointSlice) {
        let name = &object.metadata.name;
        let namespace = Str::new(object.namespace.as_deref().unwrap_or_default());
        let is_new = !self.slices.contains_key(name);
        let slice = self.slices.entry(name.clone()).or_default();
        if is_new {
            slice.namespace = namespace.clone();
        }
        // An event that was on its way when the slice was written.
        let version = |text: &str| text.parse::<u64>().ok();
        if let Some(stored) = &slice.stored
            && version(&object.metadata.resource_version) < version(&stored.resource_version)
        {
            return;
        }
        slice.stored = Some(Stored {
            uid: object.metadata.uid.clone(),
            resource_version: object.metadata.resource_version.clone(),
            digest: digest(&namespace, object.endpoints.iter()),
        });
        if is_new && !self.has_endpoints && !namespace.is_empty() {
            for entry in &object.endpoints {
                let key = ObjectKey {
                    namespace: namespace.clone(),
                    name: Str::new(entry.name.as_deref().unwrap_or_default()),
                };
                if !key.name.is_empty() && !self.endpoints.contains_key(&key) {
                    slice.members.insert(key.name.clone());
                    let placed = Placed {
                        slice: name.clone(),
                        entry: Box::new(entry.clone()),
                    };
                    self.endpoints.insert(key, placed);
                }
            }
        }
        self.mark(name.clone());
    }

    /// The server does not have this slice.
    pub(crate) fn observe_gone(&mut self, name: &str) {
        let Some(slice) = self.slices.get_mut(name) else {
            return;
        };
        slice.stored = None;
        slice.is_closed = false;
        match slice.members.is_empty() {
            true => drop(self.slices.remove(name)),
            false => self.mark(Str::new(name)),
        }
    }

    /// All endpoints. Those that cannot be read stay as they were.
    pub(crate) fn replace_endpoints(
        &mut self,
        endpoints: impl Iterator<Item = (ObjectKey, Option<CoreCiliumEndpoint>)>,
        unreadable: &HashSet<ObjectKey>,
    ) {
        let mut seen = unreadable.clone();
        self.has_endpoints = true;
        for (key, entry) in endpoints {
            seen.insert(key.clone());
            if let Some(entry) = entry {
                self.upsert(key, entry);
            }
        }
        let gone: Vec<ObjectKey> = self
            .endpoints
            .keys()
            .filter(|key| !seen.contains(*key))
            .cloned()
            .collect();
        gone.iter().for_each(|key| self.delete(key));
    }

    /// An endpoint is new or has changed.
    pub(crate) fn upsert(&mut self, key: ObjectKey, entry: CoreCiliumEndpoint) {
        if let Some(placed) = self.endpoints.get_mut(&key) {
            if *placed.entry != entry {
                *placed.entry = entry;
                let slice = placed.slice.clone();
                self.mark(slice);
            }
            return;
        }
        let name = self.with_room(&key.namespace);
        let slice = self.slices.entry(name.clone()).or_default();
        slice.namespace = key.namespace.clone();
        slice.members.insert(key.name.clone());
        slice.inserted += 1;
        self.mark(name.clone());
        let entry = Box::new(entry);
        self.endpoints.insert(key, Placed { slice: name, entry });
    }

    pub(crate) fn delete(&mut self, key: &ObjectKey) {
        let Some(placed) = self.endpoints.remove(key) else {
            return;
        };
        if let Some(slice) = self.slices.get_mut(&placed.slice) {
            slice.members.remove(&key.name);
            slice.removed += 1;
        }
        self.mark(placed.slice);
    }

    /// The fullest slice of a namespace that has room, else a new name.
    fn with_room(&self, namespace: &Str) -> Str {
        let has_room = |slice: &Slice| {
            slice.namespace == *namespace && !slice.is_closed && slice.members.len() < self.limit
        };
        let candidates = self.slices.iter().filter(|(_, slice)| has_room(slice));
        let fullest = candidates.max_by_key(|(name, slice)| (slice.members.len(), std::cmp::Reverse(*name)));
        if let Some((name, _)) = fullest {
            return name.clone();
        }
        loop {
            let text = |length| -> String {
                let letter = || ALPHABET[fastrand::usize(..ALPHABET.len())] as char;
                std::iter::repeat_with(letter).take(length).collect()
            };
            let name = Str::new(format!("ces-{}-{}", text(9), text(5)));
            if !self.slices.contains_key(&name) {
                return name;
            }
        }
    }

    /// What has to be written so that the server has a slice as it should be. A slice that is to be deleted takes no
    /// endpoint any more.
    pub(crate) fn write(&mut self, name: &Str) -> Option<(Write, Changes)> {
        let since = self.since.remove(name).unwrap_or_else(Instant::now);
        let slice = self.slices.get_mut(name)?;
        let changes = Changes {
            since,
            endpoints: slice.members.len(),
            inserted: slice.inserted,
            removed: slice.removed,
        };
        if slice.members.is_empty() {
            let Some(stored) = &slice.stored else {
                self.slices.remove(name);
                return None;
            };
            slice.is_closed = true;
            let (name, uid) = (name.clone(), stored.uid.clone());
            return Some((Write::Delete { name, uid }, changes));
        }
        let entry = |member: &Str| {
            let key = ObjectKey {
                namespace: slice.namespace.clone(),
                name: member.clone(),
            };
            self.endpoints.get(&key).map(|placed| &*placed.entry)
        };
        let now = digest(&slice.namespace, slice.members.iter().filter_map(entry));
        if slice.stored.as_ref().is_some_and(|stored| stored.digest == now) {
            (slice.inserted, slice.removed) = (0, 0);
            return None;
        }
        let object = CiliumEndpointSlice {
            metadata: Metadata {
                name: name.clone(),
                resource_version: slice
                    .stored
                    .as_ref()
                    .map(|stored| stored.resource_version.clone())
                    .unwrap_or_default(),
                ..Metadata::default()
            },
            namespace: Some(slice.namespace.to_string()),
            endpoints: slice.members.iter().filter_map(entry).cloned().collect(),
        };
        (slice.inserted, slice.removed) = (0, 0);
        Some(match slice.stored {
            None => (Write::Create(object), changes),
            Some(_) => (Write::Update(object), changes),
        })
    }

    /// The write of a slice has ended. Returns how many in a row have failed.
    pub(crate) fn ended(&mut self, name: &Str, has_failed: bool) -> u32 {
        if has_failed {
            self.since.entry(name.clone()).or_insert_with(Instant::now);
        }
        let Some(slice) = self.slices.get_mut(name) else {
            return has_failed.into();
        };
        slice.is_closed = false;
        slice.failures = if has_failed {
            slice.failures.saturating_add(1)
        } else {
            0
        };
        slice.failures
    }

    /// A slice waits for its retry, which is later than what a change would ask for.
    pub(crate) fn forget_change(&mut self, name: &str) {
        self.changed.remove(name);
    }
}

/// Of the namespace and the entries, in the order of their names.
fn digest<'a>(namespace: &str, entries: impl Iterator<Item = &'a CoreCiliumEndpoint>) -> u64 {
    let mut entries: Vec<&CoreCiliumEndpoint> = entries.collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    for entry in entries {
        // Absent and empty lists mean the same.
        let ports = entry.named_ports.as_ref().filter(|ports| !ports.is_empty());
        let bare = CoreCiliumEndpoint {
            named_ports: ports.cloned(),
            ..entry.clone()
        };
        format!("{bare:?}").hash(&mut hasher);
    }
    hasher.finish()
}
