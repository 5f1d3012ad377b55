// SPDX-License-Identifier: Apache-2.0

//! Selectors in use, and the identities that each selects.
//!
//! An identity that comes or goes is matched against the selectors of its namespace, of networks around its own and of its
//! own reserved labels and names, and those that any identity may match; and against no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use compact_str::CompactString;
use hashbrown::HashMap;
use ipnet::IpNet;
use skep_identity::NumericIdentity;

use crate::{
    labels::IdentityLabels,
    selector::{IndexKey, Selector},
};

/// A selector of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SelectorId(u32);

/// A selector in use.
#[derive(Clone, Debug)]
pub struct CachedSelector {
    pub selector: Selector,
    pub users: usize,
    /// Identities that it selects.
    pub selection: BTreeSet<NumericIdentity>,
}

#[derive(Clone, Debug)]
struct CachedIdentity {
    labels: Arc<IdentityLabels>,
    /// Selectors that select it, sorted.
    selectors: Vec<SelectorId>,
}

/// What a change of identities did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectionChanges {
    /// Identities with the selectors that begin or cease to select them.
    pub changed: BTreeMap<NumericIdentity, Vec<SelectorId>>,
    /// An identity that stays is not selected any more where it was.
    pub is_mutated: bool,
}

impl SelectionChanges {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }
}

/// Selectors and identities.
#[derive(Clone, Debug, Default)]
pub struct SelectorCache {
    identities: BTreeMap<NumericIdentity, CachedIdentity>,
    selectors: HashMap<SelectorId, CachedSelector, foldhash::fast::FixedState>,
    by_text: HashMap<CompactString, SelectorId, foldhash::fast::FixedState>,
    selectors_by: HashMap<IndexKey, Vec<SelectorId>, foldhash::fast::FixedState>,
    /// Identities by namespace and label.
    identities_by: HashMap<IndexKey, BTreeSet<NumericIdentity>, foldhash::fast::FixedState>,
    /// Identities of networks, by address and length.
    networks: BTreeMap<(IpAddr, u8), BTreeSet<NumericIdentity>>,
    last: u32,
}

impl SelectorCache {
    /// Adds a use of a selector.
    pub fn add(&mut self, selector: &Selector) -> SelectorId {
        if let Some(id) = self.by_text.get(selector.as_str()) {
            if let Some(cached) = self.selectors.get_mut(id) {
                cached.users += 1;
            }
            return *id;
        }
        self.last += 1;
        let id = SelectorId(self.last);
        let selection = self.select(selector);
        for identity in &selection {
            if let Some(cached) = self.identities.get_mut(identity) {
                cached.selectors.push(id);
            }
        }
        for key in selector.index() {
            self.selectors_by.entry(key).or_default().push(id);
        }
        self.by_text.insert(selector.as_str().into(), id);
        let cached = CachedSelector {
            selector: selector.clone(),
            users: 1,
            selection,
        };
        self.selectors.insert(id, cached);
        id
    }

    fn select(&self, selector: &Selector) -> BTreeSet<NumericIdentity> {
        let mut found = BTreeSet::new();
        let mut add = |identity: NumericIdentity| {
            let labels = self.labels(identity);
            if labels.is_some_and(|labels| selector.matches(labels)) {
                found.insert(identity);
            }
        };
        for key in selector.index() {
            match &key {
                IndexKey::Any => self.identities.keys().for_each(|identity| add(*identity)),
                IndexKey::Network(net) => {
                    let inside = self
                        .networks
                        .range((net.network(), 0)..=(net.broadcast(), u8::MAX));
                    inside
                        .flat_map(|(_, identities)| identities)
                        .for_each(|identity| add(*identity));
                }
                IndexKey::Namespace(_) | IndexKey::Label(_) => {
                    let identities = self.identities_by.get(&key).into_iter().flatten();
                    identities.for_each(|identity| add(*identity));
                }
            }
        }
        found
    }

    /// Removes a use of a selector; without users it is gone.
    pub fn release(&mut self, id: SelectorId) {
        let Some(cached) = self.selectors.get_mut(&id) else {
            return;
        };
        cached.users -= 1;
        if cached.users > 0 {
            return;
        }
        let Some(cached) = self.selectors.remove(&id) else {
            return;
        };
        self.by_text.remove(cached.selector.as_str());
        for key in cached.selector.index() {
            if let Some(list) = self.selectors_by.get_mut(&key) {
                list.retain(|other| *other != id);
                if list.is_empty() {
                    self.selectors_by.remove(&key);
                }
            }
        }
        for identity in &cached.selection {
            if let Some(identity) = self.identities.get_mut(identity) {
                identity.selectors.retain(|other| *other != id);
            }
        }
    }

    /// Adds and deletes identities. One that is known gets new labels.
    pub fn update(
        &mut self,
        added: impl IntoIterator<Item = (NumericIdentity, Arc<IdentityLabels>)>,
        deleted: impl IntoIterator<Item = NumericIdentity>,
    ) -> SelectionChanges {
        let mut changes = SelectionChanges::default();
        for identity in deleted {
            let Some(known) = self.identities.remove(&identity) else {
                continue;
            };
            self.unindex(identity, &known.labels);
            for id in &known.selectors {
                if let Some(cached) = self.selectors.get_mut(id) {
                    cached.selection.remove(&identity);
                }
            }
            if !known.selectors.is_empty() {
                changes
                    .changed
                    .entry(identity)
                    .or_default()
                    .extend(known.selectors);
            }
        }
        for (identity, labels) in added {
            let before = self.identities.remove(&identity);
            if let Some(before) = before.as_ref().filter(|before| before.labels == labels) {
                self.identities.insert(identity, before.clone());
                continue;
            }
            if let Some(before) = &before {
                self.unindex(identity, &before.labels);
            }
            let selectors = self.matching(&labels);
            let old = before.map(|before| before.selectors).unwrap_or_default();
            let mut changed = Vec::new();
            for id in old.iter().filter(|id| !selectors.contains(id)) {
                changes.is_mutated = true;
                changed.push(*id);
                if let Some(cached) = self.selectors.get_mut(id) {
                    cached.selection.remove(&identity);
                }
            }
            for id in selectors.iter().filter(|id| !old.contains(id)) {
                changed.push(*id);
                if let Some(cached) = self.selectors.get_mut(id) {
                    cached.selection.insert(identity);
                }
            }
            if !changed.is_empty() {
                changes.changed.entry(identity).or_default().extend(changed);
            }
            self.index(identity, &labels);
            self.identities
                .insert(identity, CachedIdentity { labels, selectors });
        }
        changes
    }

    fn index(&mut self, identity: NumericIdentity, labels: &IdentityLabels) {
        for key in keys_of(labels) {
            self.identities_by.entry(key).or_default().insert(identity);
        }
        if let Some(net) = labels.network() {
            let place = (net.network(), net.prefix_len());
            self.networks.entry(place).or_default().insert(identity);
        }
    }

    fn unindex(&mut self, identity: NumericIdentity, labels: &IdentityLabels) {
        for key in keys_of(labels) {
            if let Some(identities) = self.identities_by.get_mut(&key) {
                identities.remove(&identity);
                if identities.is_empty() {
                    self.identities_by.remove(&key);
                }
            }
        }
        if let Some(net) = labels.network() {
            let place = (net.network(), net.prefix_len());
            if let Some(identities) = self.networks.get_mut(&place) {
                identities.remove(&identity);
                if identities.is_empty() {
                    self.networks.remove(&place);
                }
            }
        }
    }

    /// Selectors that match labels, sorted.
    fn matching(&self, labels: &IdentityLabels) -> Vec<SelectorId> {
        let around = labels.network().into_iter().flat_map(|net| {
            let lengths = 0..=net.prefix_len();
            lengths.filter_map(move |length| IpNet::new(net.addr(), length).ok())
        });
        let around = around.map(|net| IndexKey::Network(net.trunc()));
        let keys = std::iter::once(IndexKey::Any)
            .chain(keys_of(labels))
            .chain(around);
        let mut found = Vec::new();
        for id in keys.filter_map(|key| self.selectors_by.get(&key)).flatten() {
            if self
                .selectors
                .get(id)
                .is_some_and(|cached| cached.selector.matches(labels))
            {
                found.push(*id);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    pub fn get(&self, id: SelectorId) -> Option<&CachedSelector> {
        self.selectors.get(&id)
    }

    /// A selector in use.
    pub fn id_of(&self, selector: &Selector) -> Option<SelectorId> {
        self.by_text.get(selector.as_str()).copied()
    }

    /// Identities that a selector selects.
    pub fn selection(&self, id: SelectorId) -> impl Iterator<Item = NumericIdentity> {
        self.selectors
            .get(&id)
            .into_iter()
            .flat_map(|cached| cached.selection.iter().copied())
    }

    /// Selectors that select an identity.
    pub fn selectors_of(&self, identity: NumericIdentity) -> &[SelectorId] {
        self.identities
            .get(&identity)
            .map_or(&[], |cached| &cached.selectors)
    }

    pub fn labels(&self, identity: NumericIdentity) -> Option<&Arc<IdentityLabels>> {
        self.identities.get(&identity).map(|cached| &cached.labels)
    }

    pub fn identities(&self) -> impl Iterator<Item = (NumericIdentity, &Arc<IdentityLabels>)> {
        self.identities
            .iter()
            .map(|(identity, cached)| (*identity, &cached.labels))
    }

    pub fn iter(&self) -> impl Iterator<Item = (SelectorId, &CachedSelector)> {
        self.selectors.iter().map(|(id, cached)| (*id, cached))
    }
}

/// Keys of the selectors that can match labels, but for those of networks and for `Any`.
fn keys_of(labels: &IdentityLabels) -> impl Iterator<Item = IndexKey> {
    let namespace = labels.namespace();
    let namespace = (!namespace.is_empty()).then(|| IndexKey::Namespace(namespace.into()));
    namespace.into_iter().chain(
        labels
            .iter()
            .filter_map(|label| IndexKey::of_label(label.source(), label.key())),
    )
}

#[cfg(test)]
mod tests {
    use skep_identity::Label;

    use super::*;
    use crate::selector::{LabelSelector, SelectorKey};

    fn labels(text: &[&str]) -> Arc<IdentityLabels> {
        Arc::new(text.iter().map(|label| label.parse::<Label>().unwrap()).collect())
    }

    fn select(label: &str) -> Selector {
        let (key, value) = label.split_once('=').unwrap();
        LabelSelector::default()
            .with(SelectorKey::parse(key, &skep_identity::LabelSource::Any), value)
            .build()
    }

    #[test]
    fn identities_touch_what_selects_them() {
        let mut cache = SelectorCache::default();
        let (web, api) = (cache.add(&select("app=web")), cache.add(&select("app=api")));
        assert_eq!(
            cache.add(&select("app=web")),
            web,
            "one entry for equal selectors"
        );
        let id = NumericIdentity::new(1000);

        let added = cache.update([(id, labels(&["k8s:app=web"]))], []);
        assert_eq!(added.changed, BTreeMap::from([(id, vec![web])]));
        assert!(
            cache.update([(id, labels(&["k8s:app=web"]))], []).is_empty(),
            "equal labels"
        );

        let relabelled = cache.update([(id, labels(&["k8s:app=api"]))], []);
        assert!(relabelled.is_mutated);
        assert_eq!(relabelled.changed[&id], [web, api]);
        assert_eq!(cache.selection(web).count(), 0, "published at once");
        assert_eq!(cache.selectors_of(id), [api]);

        assert_eq!(cache.update([], [id]).changed[&id], [api]);
        cache.release(web);
        assert!(cache.get(web).is_some(), "has another user");
        cache.release(web);
        assert!(cache.get(web).is_none());
    }

    #[test]
    fn selectors_of_other_namespaces_are_not_matched() {
        let mut cache = SelectorCache::default();
        let of_shop = cache.add(&select("k8s:io.kubernetes.pod.namespace=shop"));
        let id = NumericIdentity::new(1000);

        cache.update([(id, labels(&["k8s:io.kubernetes.pod.namespace=bank"]))], []);
        assert_eq!(cache.selectors_of(id), []);
        let moved = cache.update([(id, labels(&["k8s:io.kubernetes.pod.namespace=shop"]))], []);
        assert_eq!(moved.changed[&id], [of_shop]);
        assert!(!moved.is_mutated);
    }
}
