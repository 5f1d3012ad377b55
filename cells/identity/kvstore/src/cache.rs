// SPDX-License-Identifier: Apache-2.0

//! The identities that are known, of the own and of remote clusters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use skep_identity::{IdentityRange, NumericIdentity};

use crate::decoder::IdentityDecoder;
use crate::layout::IdentityLabels;
use skep_kvstore_store::{InvalidEntry, Observer};
use skep_kvstore_store::{WatchStore, WatchStoreOptions};

#[derive(Debug, Default)]
pub(super) struct Cache {
    labels: HashMap<NumericIdentity, IdentityLabels>,
    /// Two nodes that could not see each other may have allocated two ids for the same labels.
    ids: HashMap<IdentityLabels, BTreeSet<NumericIdentity>>,
}

impl Cache {
    fn insert(&mut self, id: NumericIdentity, labels: IdentityLabels) {
        if self.labels.get(&id) == Some(&labels) {
            return;
        }
        self.remove(id);
        self.ids.entry(labels.clone()).or_default().insert(id);
        self.labels.insert(id, labels);
    }

    fn remove(&mut self, id: NumericIdentity) {
        if let Some(labels) = self.labels.remove(&id)
            && let Some(ids) = self.ids.get_mut(&labels)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.ids.remove(&labels);
            }
        }
    }

    pub(super) fn contains(&self, id: NumericIdentity) -> bool {
        self.labels.contains_key(&id)
    }

    /// All ids of some labels, sorted.
    pub(super) fn ids(&self, labels: &IdentityLabels) -> Vec<NumericIdentity> {
        self.ids.get(labels).into_iter().flatten().copied().collect()
    }
}

/// The identities that are known, of the own cluster and of remote ones. Clones are the same.
#[derive(Clone, Default)]
pub struct Identities {
    own: Arc<RwLock<Cache>>,
    remote: Arc<RwLock<BTreeMap<String, Arc<RwLock<Cache>>>>>,
}

impl Identities {
    /// No identities: for programs without an allocator of the own cluster.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn labels(&self, id: NumericIdentity) -> Option<IdentityLabels> {
        self.find(|cache| cache.labels.get(&id).cloned())
    }

    /// The id of some labels: the lowest, if there are several; of the own cluster, if it has one.
    pub fn id(&self, labels: &IdentityLabels) -> Option<NumericIdentity> {
        self.find(|cache| cache.ids(labels).first().copied())
    }

    /// A store with the identities of a remote cluster, which are known here as long as the store holds them. Its owner
    /// watches [`IdentityKeys::masters`](crate::IdentityKeys::masters), and calls [`remove`](Self::remove) when the cluster is
    /// no longer part of the mesh.
    pub fn remote<O: Observer<NumericIdentity, IdentityLabels>>(
        &self,
        cluster: &str,
        range: IdentityRange,
        observer: O,
        options: WatchStoreOptions,
    ) -> WatchStore<IdentityDecoder, IdentityObserver<O>> {
        let cache = Arc::new(RwLock::default());
        self.remote.write().insert(cluster.to_owned(), Arc::clone(&cache));
        WatchStore::new(
            IdentityDecoder::remote(cluster, range),
            IdentityObserver { cache, observer },
            options,
        )
    }

    /// Forgets the identities of a remote cluster.
    pub fn remove(&self, cluster: &str) {
        self.remote.write().remove(cluster);
    }

    pub(super) fn own(&self) -> &RwLock<Cache> {
        &self.own
    }

    pub(super) fn observer<O>(&self, observer: O) -> IdentityObserver<O> {
        IdentityObserver {
            cache: Arc::clone(&self.own),
            observer,
        }
    }

    fn find<T>(&self, find: impl Fn(&Cache) -> Option<T>) -> Option<T> {
        if let Some(found) = find(&self.own.read()) {
            return Some(found);
        }
        self.remote.read().values().find_map(|cache| find(&cache.read()))
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clusters: Vec<String> = self.remote.read().keys().cloned().collect();
        f.debug_struct("Identities")
            .field("own", &self.own.read().labels.len())
            .field("remote", &clusters)
            .finish()
    }
}

/// Keeps [`Identities`] in step with a store, then reports to another observer.
pub struct IdentityObserver<O> {
    cache: Arc<RwLock<Cache>>,
    observer: O,
}

impl<O: Observer<NumericIdentity, IdentityLabels>> Observer<NumericIdentity, IdentityLabels>
    for IdentityObserver<O>
{
    fn upsert(&mut self, id: &NumericIdentity, labels: &Arc<IdentityLabels>) {
        self.cache.write().insert(*id, (**labels).clone());
        self.observer.upsert(id, labels);
    }

    fn delete(&mut self, id: &NumericIdentity, labels: &Arc<IdentityLabels>) {
        self.cache.write().remove(*id);
        self.observer.delete(id, labels);
    }

    fn synced(&mut self) {
        self.observer.synced();
    }

    fn invalid(&mut self, entry: &InvalidEntry) {
        self.observer.invalid(entry);
    }
}

impl<O> fmt::Debug for IdentityObserver<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityObserver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_with_two_ids_have_the_lowest() {
        let identities = Identities::new();
        let mut observer = identities.observer(());
        let cart = Arc::new(IdentityLabels::from("k8s:app=cart;"));
        let shop = Arc::new(IdentityLabels::from("k8s:app=shop;"));
        observer.upsert(&NumericIdentity::new(300), &cart);
        observer.upsert(&NumericIdentity::new(299), &cart);
        assert_eq!(identities.id(&cart), Some(NumericIdentity::new(299)));

        observer.upsert(&NumericIdentity::new(299), &shop);
        assert_eq!(identities.id(&cart), Some(NumericIdentity::new(300)));
        assert_eq!(identities.id(&shop), Some(NumericIdentity::new(299)));

        observer.delete(&NumericIdentity::new(300), &cart);
        assert_eq!(identities.id(&cart), None);
        assert_eq!(identities.labels(NumericIdentity::new(300)), None);
    }
}
