// SPDX-License-Identifier: Apache-2.0

//! Labels and keys of identities.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use skep_identity::{IdentityRange, NumericIdentity};
use skep_kvstore_client::keys;

/// The labels of an identity as one text: sorted by key, each as `source:key=value;`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityLabels(Arc<str>);

impl IdentityLabels {
    /// The label whose value is the name of the cluster.
    const CLUSTER: &'static str = "k8s:io.cilium.k8s.policy.cluster=";

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The cluster of the identity, from its label `k8s:io.cilium.k8s.policy.cluster`.
    pub fn cluster(&self) -> Option<&str> {
        self.0
            .split(';')
            .find_map(|label| label.strip_prefix(Self::CLUSTER))
    }
}

impl From<&str> for IdentityLabels {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for IdentityLabels {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdentityLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All ids of a range, from a random one on.
pub(super) fn shuffled(range: IdentityRange) -> impl Iterator<Item = NumericIdentity> {
    let (first, last) = (range.first().get(), range.last().get());
    let start = first + fastrand::u32(0..range.size().max(1) as u32);
    (start..=last).chain(first..start).map(NumericIdentity::new)
}

/// The keys of identities below a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityKeys {
    base: String,
}

impl Default for IdentityKeys {
    /// Below `cilium/state/identities/v1`.
    fn default() -> Self {
        Self {
            base: keys::join([keys::STATE, "identities", "v1"]),
        }
    }
}

impl IdentityKeys {
    /// The keys of cluster `cluster` that kvstoremesh has copied: only master keys, below
    /// `cilium/cache/identities/v1/<cluster>`.
    pub fn cached(cluster: &str) -> Self {
        Self {
            base: keys::join([keys::CACHE, "identities", "v1", cluster]),
        }
    }

    pub fn masters(&self) -> String {
        keys::join([&self.base, "id"])
    }

    /// The master key of an id. Its value is the labels.
    pub fn master(&self, id: NumericIdentity) -> String {
        format!("{}/id/{id}", self.base)
    }

    pub fn slaves(&self) -> String {
        keys::join([&self.base, "value"])
    }

    /// Prefix of the slave keys of all nodes that use some labels, with a `/` at the end.
    pub fn slaves_of(&self, labels: &IdentityLabels) -> String {
        format!("{}/value/{labels}/", self.base)
    }

    /// The slave key of a node. Its value is the id.
    pub fn slave(&self, labels: &IdentityLabels, node: &str) -> String {
        format!("{}/value/{labels}/{node}", self.base)
    }

    /// Path of the lock for the allocation of some labels.
    pub fn lock(&self, labels: &IdentityLabels) -> String {
        format!("{}/locks/{labels}", self.base)
    }

    /// Path of the lock for the deletion of a master key.
    pub fn gc_lock(&self, id: NumericIdentity) -> String {
        format!("{}/locks/id/{id}", self.base)
    }

    pub fn locks(&self) -> String {
        keys::join([&self.base, "locks"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_kvstore_store::testing::{golden, golden_cases};

    #[test]
    fn shuffled_yields_each_id_once() {
        let range = IdentityRange::between(NumericIdentity::new(300), NumericIdentity::new(309));

        let mut ids: Vec<u32> = shuffled(range).map(NumericIdentity::get).collect();

        ids.sort_unstable();
        assert_eq!(ids, (300..310).collect::<Vec<_>>());
        assert_eq!(shuffled(IdentityRange::EMPTY).count(), 0);
    }

    #[test]
    fn keys_are_those_of_cilium() {
        let keys = IdentityKeys::default();
        let cases = golden_cases("identities");
        let labels =
            |case: usize| IdentityLabels::from(cases[case]["value"].as_str().expect("it has a value"));
        let master = keys.master(NumericIdentity::new(459_001));
        assert_eq!(
            [
                master.clone(),
                keys.slave(&labels(0), "192.168.50.21"),
                master,
                IdentityKeys::cached("alder").master(NumericIdentity::new(459_001)),
                keys.master(NumericIdentity::new(458_752)),
            ],
            *golden("identities")
        );
        assert_eq!(labels(2).cluster(), Some("alder"));

        let lease = "/dcda1fb76307a21";
        let cart = IdentityLabels::from("k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;");
        assert_eq!(
            [
                keys.lock(&cart) + lease,
                keys.gc_lock(NumericIdentity::new(496_601)) + lease
            ],
            *golden("identity_locks")
        );
    }
}
