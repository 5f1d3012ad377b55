// SPDX-License-Identifier: Apache-2.0

//! Values of remote clusters, by the service that they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{Stream, stream};
use parking_lot::Mutex;
use skep_clustermesh_types::{ClusterName, Kind};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;
use tokio::sync::Notify;

/// Values by service and cluster, as the stores of the clusters hold them.
#[derive(Debug)]
pub(crate) struct Remote<V> {
    known: Mutex<Known<V>>,
    changed: Notify,
}

#[derive(Debug)]
struct Known<V> {
    values: BTreeMap<ObjectKey, BTreeMap<String, V>>,
    /// Kinds of values that were complete once.
    synced: BTreeSet<(String, Kind)>,
    changes: Changes,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    keys: BTreeSet<ObjectKey>,
    /// The values of a cluster became complete.
    is_cluster_synced: bool,
}

/// Services of which not all clusters are known.
#[derive(Debug, Default)]
pub(crate) struct Incomplete(BTreeSet<ObjectKey>);

impl Incomplete {
    pub(crate) fn set(&mut self, service: &ObjectKey, is_incomplete: bool) {
        match is_incomplete {
            true => _ = self.0.insert(service.clone()),
            false => _ = self.0.remove(service),
        }
    }

    pub(crate) fn contains(&self, service: &ObjectKey) -> bool {
        self.0.contains(service)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the services that changes affect: also those that wait for a cluster.
    pub(crate) fn affected(&self, mut changes: Changes) -> Vec<ObjectKey> {
        if changes.is_cluster_synced {
            changes.keys.extend(self.0.iter().cloned());
        }
        changes.keys.into_iter().collect()
    }
}

impl<V> Default for Remote<V> {
    fn default() -> Self {
        let known = Known {
            values: BTreeMap::new(),
            synced: BTreeSet::new(),
            changes: Changes::default(),
        };
        Self {
            known: Mutex::new(known),
            changed: Notify::new(),
        }
    }
}

impl<V> Remote<V> {
    /// Changes since the last item, of all streams.
    pub(crate) fn changes(self: Arc<Self>) -> impl Stream<Item = Changes> {
        stream::unfold(self, |remote| async {
            remote.changed.notified().await;
            let changes = std::mem::take(&mut remote.known.lock().changes);
            Some((changes, remote))
        })
    }

    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.known.lock().values.keys().cloned().collect()
    }

    pub(crate) fn contains(&self, key: &ObjectKey) -> bool {
        self.known.lock().values.contains_key(key)
    }

    /// Returns what `read` makes of the values of a service, by cluster.
    pub(crate) fn of<T>(&self, key: &ObjectKey, read: impl Fn(&V) -> T) -> BTreeMap<String, T> {
        let known = self.known.lock();
        let values = known.values.get(key).into_iter().flatten();
        values
            .map(|(cluster, value)| (cluster.clone(), read(value)))
            .collect()
    }

    /// Whether all values of a kind were known once.
    pub(crate) fn was_synced(&self, cluster: &str, kind: Kind) -> bool {
        self.known.lock().synced.contains(&(cluster.to_owned(), kind))
    }

    /// Changes the value of a service of a cluster.
    pub(crate) fn change(&self, key: ObjectKey, cluster: &str, change: impl FnOnce(&mut Option<V>)) {
        let mut known = self.known.lock();
        let mut values = known.values.remove(&key).unwrap_or_default();
        let mut value = values.remove(cluster);
        change(&mut value);
        values.extend(value.map(|value| (cluster.to_owned(), value)));
        if !values.is_empty() {
            known.values.insert(key.clone(), values);
        }
        known.changes.keys.insert(key);
        self.changed.notify_one();
    }

    pub(crate) fn synced(&self, cluster: &ClusterName, kind: Kind) {
        let mut known = self.known.lock();
        known.synced.insert((cluster.to_string(), kind));
        known.changes.is_cluster_synced = true;
        self.changed.notify_one();
    }
}

pub(crate) fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: Str::new(namespace),
        name: Str::new(name),
    }
}
