// SPDX-License-Identifier: Apache-2.0

//! Which identities are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use skep_identity::{IdentityRange, Label, Labels, NumericIdentity};
use skep_identity_labels::{LabelFilter, PodLabels};
use skep_k8s_types::ObjectKey;
use tokio::time::Instant;

/// How often a free id is guessed before all are looked at.
const GUESSES: usize = 16;

/// Key and value of the labels of an object.
type Pairs = Box<[(Box<str>, Box<str>)]>;

/// Pods, namespaces and identities of a cluster.
#[derive(Debug)]
pub struct World {
    filter: LabelFilter,
    cluster: String,
    range: IdentityRange,
    namespaces: HashMap<Box<str>, Pairs>,
    pods: HashMap<ObjectKey, Pod>,
    by_namespace: HashMap<Box<str>, HashSet<ObjectKey>>,
    /// Label sets of pods, by their text.
    wanted: HashMap<Arc<str>, Wanted>,
    /// Label sets of identities; `None` for labels that cannot be read.
    by_id: HashMap<u32, Option<Arc<str>>>,
    /// Ids that may be in use although no identity is known.
    reserved: HashSet<u32>,
    /// How many identities have a label set.
    known: HashMap<Arc<str>, usize>,
    /// Label sets of pods that no identity has, and since when.
    missing: BTreeMap<Arc<str>, Instant>,
    /// Label sets that have become wanted, missing, or neither.
    changed: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
struct Pod {
    labels: Pairs,
    service_account: Box<str>,
    named_ports: Box<[Label]>,
    /// Its label sets: without and with its named ports, as agents use one or the other. None as long as its namespace is not
    /// known.
    sets: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Wanted {
    labels: Labels,
    pods: usize,
}

fn pairs<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Pairs {
    let labels = labels.into_iter();
    labels
        .map(|(key, value)| (Box::from(key), Box::from(value)))
        .collect()
}

fn borrowed(pairs: &Pairs) -> Vec<(&str, &str)> {
    pairs.iter().map(|(key, value)| (&**key, &**value)).collect()
}

impl World {
    pub fn new(cluster: &str, filter: LabelFilter, range: IdentityRange) -> Self {
        Self {
            filter,
            cluster: cluster.to_owned(),
            range,
            namespaces: HashMap::new(),
            pods: HashMap::new(),
            by_namespace: HashMap::new(),
            wanted: HashMap::new(),
            by_id: HashMap::new(),
            reserved: HashSet::new(),
            known: HashMap::new(),
            missing: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// A pod is new, or has changed.
    pub fn set_pod<'a>(
        &mut self,
        key: ObjectKey,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        service_account: &str,
        named_ports: Vec<Label>,
    ) {
        let old = self.pods.remove(&key).map(|pod| pod.sets);
        let mut pod = Pod {
            labels: pairs(labels),
            service_account: service_account.into(),
            named_ports: named_ports.into(),
            sets: Vec::new(),
        };
        let wanted = self.labels_of(&key, &pod);
        pod.sets = wanted.into_iter().map(|labels| self.want(labels)).collect();
        let of_namespace = self.by_namespace.entry(Box::from(&*key.namespace));
        of_namespace.or_default().insert(key.clone());
        self.pods.insert(key, pod);
        // After the new one: that may be the same.
        self.unwant(old.unwrap_or_default());
    }

    /// A pod is gone, or needs no identity any longer.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        let Some(pod) = self.pods.remove(key) else {
            return;
        };
        if let Some(pods) = self.by_namespace.get_mut(&*key.namespace) {
            pods.remove(key);
            if pods.is_empty() {
                self.by_namespace.remove(&*key.namespace);
            }
        }
        self.unwant(pod.sets);
    }

    /// A namespace is new, or has changed.
    pub fn set_namespace<'a>(&mut self, name: &str, labels: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let labels = pairs(labels);
        if self.namespaces.insert(name.into(), labels.clone()) != Some(labels) {
            self.relabel(name);
        }
    }

    /// A namespace is gone. Its pods need no identities.
    pub fn remove_namespace(&mut self, name: &str) {
        if self.namespaces.remove(name).is_some() {
            self.relabel(name);
        }
    }

    pub fn set_identity(&mut self, id: u32, labels: &Labels) {
        let text = labels.to_string();
        if matches!(self.by_id.get(&id), Some(Some(known)) if **known == *text) {
            return;
        }
        self.remove_identity(id);
        let set = match self.wanted.get_key_value(&*text) {
            Some((set, _)) => set.clone(),
            None => text.into(),
        };
        if self.missing.remove(&set).is_some() {
            self.changed.insert(set.clone());
        }
        *self.known.entry(set.clone()).or_default() += 1;
        self.by_id.insert(id, Some(set));
    }

    /// An identity exists whose labels cannot be read.
    pub fn set_unreadable(&mut self, id: u32) {
        self.remove_identity(id);
        self.by_id.insert(id, None);
    }

    pub fn remove_identity(&mut self, id: u32) {
        let Some(Some(set)) = self.by_id.remove(&id) else {
            return;
        };
        if let Some(count) = self.known.get_mut(&set) {
            *count -= 1;
            if *count == 0 {
                self.known.remove(&set);
                if self.wanted.contains_key(&set) {
                    self.changed.insert(set.clone());
                    self.missing.insert(set, Instant::now());
                }
            }
        }
    }

    /// An id may be in use, although no identity is known.
    pub fn reserve(&mut self, id: u32) {
        self.reserved.insert(id);
    }

    /// An id is in use only if an identity is known.
    pub fn release(&mut self, id: u32) {
        self.reserved.remove(&id);
    }

    /// Label sets that have become wanted, missing, or neither since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// Number of label sets of pods.
    pub fn sets(&self) -> usize {
        self.wanted.len()
    }

    /// Whether an identity with the id is known.
    pub fn is_used(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Label sets of pods that no identity has, by their text.
    pub fn missing(&self) -> impl Iterator<Item = &Arc<str>> {
        self.missing.keys()
    }

    /// Since when a set is missing.
    pub fn missing_since(&self, set: &str) -> Option<Instant> {
        self.missing.get(set).copied()
    }

    /// The labels of a set that is missing.
    pub fn missing_labels(&self, set: &str) -> Option<&Labels> {
        self.missing.get(set)?;
        Some(&self.wanted.get(set)?.labels)
    }

    /// The label set of an identity, if pods have it.
    pub fn wanted_set(&self, id: u32) -> Option<&Arc<str>> {
        let set = self.by_id.get(&id)?.as_ref()?;
        self.wanted.contains_key(set).then_some(set)
    }

    /// Whether pods have the labels of an identity.
    pub fn wants(&self, id: u32) -> bool {
        self.wanted_set(id).is_some()
    }

    /// How many ids of the cluster no identity has and are not reserved.
    pub fn free(&self) -> usize {
        let reserved = self.reserved.iter().filter(|id| !self.by_id.contains_key(id));
        let is_own = |id: &&u32| self.range.contains(NumericIdentity::new(**id));
        self.range.size() - self.by_id.keys().chain(reserved).filter(is_own).count()
    }

    /// How many ids the cluster has.
    pub fn size(&self) -> usize {
        self.range.size()
    }

    /// A random id that no identity has and that is not reserved.
    pub fn free_id(&self, rng: &mut fastrand::Rng) -> Option<u32> {
        let (first, last) = (self.range.first().get(), self.range.last().get());
        if first > last {
            return None;
        }
        let is_free = |id: &u32| !self.by_id.contains_key(id) && !self.reserved.contains(id);
        let guess = (0..GUESSES).map(|_| rng.u32(first..=last)).find(|id| is_free(id));
        guess.or_else(|| {
            let start = rng.u32(first..=last);
            (start..=last).chain(first..start).find(is_free)
        })
    }

    /// The labels of a pod in their namespace changed.
    fn relabel(&mut self, namespace: &str) {
        let pods = self.by_namespace.get(namespace).into_iter().flatten();
        for key in pods.cloned().collect::<Vec<_>>() {
            let Some(pod) = self.pods.get(&key) else { continue };
            let labels = self.labels_of(&key, pod);
            let sets = labels.into_iter().map(|labels| self.want(labels)).collect();
            if let Some(pod) = self.pods.get_mut(&key) {
                let old = std::mem::replace(&mut pod.sets, sets);
                self.unwant(old);
            }
        }
    }

    fn labels_of(&self, key: &ObjectKey, pod: &Pod) -> Vec<Labels> {
        let Some(namespace) = self.namespaces.get(&*key.namespace) else {
            return Vec::new();
        };
        let labels = PodLabels {
            namespace: &key.namespace,
            namespace_labels: &borrowed(namespace),
            cluster: &self.cluster,
            service_account: &pod.service_account,
            labels: &borrowed(&pod.labels),
        };
        let labels = labels.identity(&self.filter);
        let ports = &pod.named_ports;
        let with_ports = || labels.iter().chain(ports).cloned().collect();
        let with_ports = (!ports.is_empty()).then(with_ports);
        std::iter::once(labels).chain(with_ports).collect()
    }

    fn want(&mut self, labels: Labels) -> Arc<str> {
        let text = labels.to_string();
        if let Some((set, _)) = self.wanted.get_key_value(&*text) {
            let set = set.clone();
            if let Some(wanted) = self.wanted.get_mut(&set) {
                wanted.pods += 1;
            }
            return set;
        }
        let set: Arc<str> = match self.known.get_key_value(&*text) {
            Some((set, _)) => set.clone(),
            None => text.into(),
        };
        self.wanted.insert(set.clone(), Wanted { labels, pods: 1 });
        self.changed.insert(set.clone());
        if !self.known.contains_key(&set) {
            self.missing.insert(set.clone(), Instant::now());
        }
        set
    }

    fn unwant(&mut self, sets: Vec<Arc<str>>) {
        for set in sets {
            if let Some(wanted) = self.wanted.get_mut(&set) {
                wanted.pods -= 1;
                if wanted.pods == 0 {
                    self.wanted.remove(&set);
                    self.missing.remove(&set);
                    self.changed.insert(set);
                }
            }
        }
    }
}
