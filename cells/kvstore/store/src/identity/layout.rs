// SPDX-License-Identifier: Apache-2.0

//! Ids, labels and keys of identities.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use skep_kvstore::keys;

/// Ids below this one are reserved, and the same in every cluster.
const MIN: u32 = 256;
/// Bits of an identity.
const BITS: u32 = 24;

/// The id of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumericIdentity(pub u32);

impl NumericIdentity {
    /// Parses a decimal number without sign.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number).map(Self)
    }
}

impl fmt::Display for NumericIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The labels of an identity as one text: sorted by key, each as `source:key=value;`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityLabels(Arc<str>);

impl IdentityLabels {
    /// The label whose value is the name of the cluster.
    const CLUSTER: &'static str = "k8s:io.cilium.k8s.policy.cluster=";

    /// The text.
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

/// The ids that a cluster may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityRange {
    min: u32,
    max: u32,
}

/// Why a cluster has no ids: fix `cluster-id` or `max-connected-clusters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityRangeError {
    /// All clusters of a mesh have the same maximum, one of two.
    #[error("max-connected-clusters is {0}, but only 255 and 511 are supported")]
    MaxConnectedClusters(u32),

    /// The id does not fit into the bits for it.
    #[error("cluster id {cluster_id} is larger than max-connected-clusters, {max}")]
    ClusterId {
        /// The id.
        cluster_id: u32,
        /// The largest one.
        max: u32,
    },
}

impl IdentityRange {
    /// The ids of a cluster: the upper 8 bits of 24 are its id, or the upper 9 if 511 clusters may be connected. Cluster
    /// 0, which is part of no mesh, begins at 256.
    ///
    /// ```
    /// # use skep_kvstore_store::identity::IdentityRange;
    /// let range = IdentityRange::of_cluster(7, 255)?;
    /// assert_eq!(range.to_string(), "458752-524287");
    /// # Ok::<(), skep_kvstore_store::identity::IdentityRangeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`IdentityRangeError`] names the setting.
    pub fn of_cluster(cluster_id: u32, max_connected_clusters: u32) -> Result<Self, IdentityRangeError> {
        let shift = match max_connected_clusters {
            255 => BITS - 8,
            511 => BITS - 9,
            other => return Err(IdentityRangeError::MaxConnectedClusters(other)),
        };
        if cluster_id > max_connected_clusters {
            return Err(IdentityRangeError::ClusterId {
                cluster_id,
                max: max_connected_clusters,
            });
        }
        let first = cluster_id << shift;
        Ok(Self {
            min: first.max(MIN),
            max: first + (1 << shift) - 1,
        })
    }

    /// How many ids there are.
    pub fn size(&self) -> usize {
        (self.max - self.min) as usize + 1
    }

    /// Whether an id is one of them.
    pub fn contains(&self, id: NumericIdentity) -> bool {
        (self.min..=self.max).contains(&id.0)
    }

    /// All ids, from a random one on.
    pub(super) fn shuffled(&self) -> impl Iterator<Item = NumericIdentity> + use<> {
        let Self { min, max } = *self;
        let start = fastrand::u32(min..=max);
        (start..=max).chain(min..start).map(NumericIdentity)
    }

    #[cfg(test)]
    pub(super) fn between(min: u32, max: u32) -> Self {
        Self { min, max }
    }
}

impl fmt::Display for IdentityRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.min, self.max)
    }
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

    /// Prefix of master keys.
    pub fn masters(&self) -> String {
        keys::join([&self.base, "id"])
    }

    /// The master key of an id. Its value is the labels.
    pub fn master(&self, id: NumericIdentity) -> String {
        format!("{}/id/{id}", self.base)
    }

    /// Prefix of slave keys.
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

    /// Prefix of all locks.
    pub fn locks(&self) -> String {
        keys::join([&self.base, "locks"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{golden, golden_cases};

    #[test]
    fn ranges_are_those_of_cilium() {
        for (id, max, range) in [
            (0, 255, "256-65535"),
            (1, 255, "65536-131071"),
            (7, 255, "458752-524287"),
            (255, 255, "16711680-16777215"),
            (0, 511, "256-32767"),
            (511, 511, "16744448-16777215"),
        ] {
            let found = IdentityRange::of_cluster(id, max).expect("it is valid");
            assert_eq!(found.to_string(), range, "cluster {id} of {max}");
        }
        let error = IdentityRange::of_cluster(256, 255).expect_err("the id is too large");
        assert_eq!(
            error.to_string(),
            "cluster id 256 is larger than max-connected-clusters, 255"
        );
        let error = IdentityRange::of_cluster(1, 300).expect_err("300 is not supported");
        assert_eq!(
            error.to_string(),
            "max-connected-clusters is 300, but only 255 and 511 are supported"
        );
    }

    #[test]
    fn shuffled_yields_each_id_once() {
        let range = IdentityRange::between(300, 309);

        let mut ids: Vec<u32> = range.shuffled().map(|id| id.0).collect();

        ids.sort_unstable();
        assert_eq!(ids, (300..310).collect::<Vec<_>>());
    }

    #[test]
    fn keys_are_those_of_cilium() {
        let keys = IdentityKeys::default();
        let cases = golden_cases("identities");
        let labels =
            |case: usize| IdentityLabels::from(cases[case]["value"].as_str().expect("it has a value"));
        let master = keys.master(NumericIdentity(459_001));
        assert_eq!(
            [
                master.clone(),
                keys.slave(&labels(0), "192.168.50.21"),
                master,
                IdentityKeys::cached("alder").master(NumericIdentity(459_001)),
                keys.master(NumericIdentity(458_752)),
            ],
            *golden("identities")
        );
        assert_eq!(labels(2).cluster(), Some("alder"));

        let lease = "/dcda1fb76307a21";
        let cart = IdentityLabels::from("k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;");
        assert_eq!(
            [
                keys.lock(&cart) + lease,
                keys.gc_lock(NumericIdentity(496_601)) + lease
            ],
            *golden("identity_locks")
        );
    }
}
