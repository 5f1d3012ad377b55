// SPDX-License-Identifier: Apache-2.0

//! Selectors in use, and the identities that each selects.
//!
//! An identity that comes or goes is matched against the selectors of its namespace and those of no namespace, and against
//! no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use compact_str::CompactString;
use hashbrown::HashMap;
use skep_identity::NumericIdentity;

use crate::{labels::IdentityLabels, selector::Selector};

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
    /// Selectors by the namespaces that they are limited to; those without a limit have the empty one.
    by_namespace: HashMap<CompactString, Vec<SelectorId>, foldhash::fast::FixedState>,
    identities_of: HashMap<CompactString, BTreeSet<NumericIdentity>, foldhash::fast::FixedState>,
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
        for namespace in limits(selector) {
            self.by_namespace.entry(namespace).or_default().push(id);
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
        let matches = |(identity, cached): (&NumericIdentity, &CachedIdentity)| {
            selector.matches(&cached.labels).then_some(*identity)
        };
        match selector.namespaces() {
            None => self.identities.iter().filter_map(matches).collect(),
            Some(namespaces) => namespaces
                .iter()
                .filter_map(|namespace| self.identities_of.get(namespace))
                .flatten()
                .filter_map(|identity| self.identities.get_key_value(identity))
                .filter_map(matches)
                .collect(),
        }
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
        for namespace in limits(&cached.selector) {
            if let Some(list) = self.by_namespace.get_mut(&namespace) {
                list.retain(|other| *other != id);
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
            self.forget_namespace(identity, &known.labels);
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
                self.forget_namespace(identity, &before.labels);
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
            self.identities_of
                .entry(labels.namespace().into())
                .or_default()
                .insert(identity);
            self.identities
                .insert(identity, CachedIdentity { labels, selectors });
        }
        changes
    }

    fn forget_namespace(&mut self, identity: NumericIdentity, labels: &IdentityLabels) {
        if let Some(identities) = self.identities_of.get_mut(labels.namespace()) {
            identities.remove(&identity);
        }
    }

    /// Selectors that match labels, sorted.
    fn matching(&self, labels: &IdentityLabels) -> Vec<SelectorId> {
        let namespace = labels.namespace();
        let of = |namespace: &str| self.by_namespace.get(namespace).into_iter().flatten();
        let limited = of(namespace).filter(|_| !namespace.is_empty());
        let mut found: Vec<SelectorId> = of("")
            .chain(limited)
            .filter(|id| {
                self.selectors
                    .get(*id)
                    .is_some_and(|cached| cached.selector.matches(labels))
            })
            .copied()
            .collect();
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

/// Namespaces under which a selector is found.
fn limits(selector: &Selector) -> Vec<CompactString> {
    let mut namespaces = match selector.namespaces() {
        None => vec![CompactString::default()],
        Some(namespaces) => namespaces.to_vec(),
    };
    namespaces.sort_unstable();
    namespaces.dedup();
    namespaces
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
