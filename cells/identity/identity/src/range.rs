// SPDX-License-Identifier: Apache-2.0

//! Which ids the clusters of a mesh allocate.

use std::fmt;

use crate::numeric::NumericIdentity;
use skep_base_settings::MaxConnectedClusters;

/// A cluster has no ids to allocate, as its own id does not fit into the bits for it: fix `cluster-id` or `max-connected-clusters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster id {cluster_id} is larger than max-connected-clusters, {max}")]
pub struct RangeError {
    pub cluster_id: u32,
    pub max: u32,
}

/// The ids that a cluster may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityRange {
    first: NumericIdentity,
    last: NumericIdentity,
}

impl IdentityRange {
    pub const EMPTY: Self = Self::between(NumericIdentity::new(1), NumericIdentity::UNKNOWN);

    /// The ids of a cluster. Cluster 0, which is part of no mesh, begins at 256.
    ///
    /// ```
    /// use skep_identity::{IdentityRange, MaxConnectedClusters};
    ///
    /// let range = IdentityRange::of_cluster(7, MaxConnectedClusters::Max255)?;
    /// assert_eq!(range.to_string(), "458752-524287");
    /// # Ok::<(), skep_identity::RangeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RangeError`] for an id that is too large.
    pub fn of_cluster(cluster_id: u32, clusters: MaxConnectedClusters) -> Result<Self, RangeError> {
        let max = clusters.get();
        if cluster_id > max {
            return Err(RangeError { cluster_id, max });
        }
        let first = cluster_id << clusters.identity_bits();
        Ok(Self {
            first: NumericIdentity::new(first).max(NumericIdentity::FIRST_ALLOCATED),
            last: NumericIdentity::new(first + (1 << clusters.identity_bits()) - 1),
        })
    }

    /// The ids from one to another; none if `last` is smaller.
    pub const fn between(first: NumericIdentity, last: NumericIdentity) -> Self {
        Self { first, last }
    }

    pub const fn size(&self) -> usize {
        (self.last.get() as usize + 1).saturating_sub(self.first.get() as usize)
    }

    pub const fn first(&self) -> NumericIdentity {
        self.first
    }

    pub const fn last(&self) -> NumericIdentity {
        self.last
    }

    /// Whether an id is one of them.
    pub fn contains(&self, identity: NumericIdentity) -> bool {
        (self.first..=self.last).contains(&identity)
    }
}

impl fmt::Display for IdentityRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let max = MaxConnectedClusters::try_from(max).unwrap();
            let found = IdentityRange::of_cluster(id, max).unwrap();
            assert_eq!(found.to_string(), range, "cluster {id} of {max:?}");
            assert!(found.contains(found.first()) && found.contains(found.last()));
            assert!(!found.contains(NumericIdentity::new(found.first().get() - 1)));
            assert!(!found.contains(NumericIdentity::new(found.last().get() + 1)));
        }
    }

    #[test]
    fn errors_name_the_setting() {
        let error = IdentityRange::of_cluster(256, MaxConnectedClusters::Max255).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cluster id 256 is larger than max-connected-clusters, 255"
        );
    }

    #[test]
    fn ids_of_ranges_are_counted() {
        let between =
            |first, last| IdentityRange::between(NumericIdentity::new(first), NumericIdentity::new(last));

        assert_eq!(between(300, 302).size(), 3);
        assert_eq!(IdentityRange::EMPTY.size(), 0);
        assert!(!IdentityRange::EMPTY.contains(NumericIdentity::UNKNOWN));
    }
}
