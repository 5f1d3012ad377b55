// SPDX-License-Identifier: Apache-2.0

//! Which numbers the clusters of a mesh allocate.

use std::fmt;

use crate::numeric::NumericIdentity;

/// Bits of the numbers of the global scope.
const BITS: u32 = 24;

/// How many of the 24 bits of an identity are the id of its cluster. All clusters of a mesh have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClusterIdBits {
    /// For up to 255 clusters, of 65535 identities each.
    #[default]
    Eight,
    /// For up to 511 clusters, of 32767 identities each.
    Nine,
}

/// Why a cluster has no numbers: fix `cluster-id` or `max-connected-clusters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
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

impl ClusterIdBits {
    /// The bits for `max-connected-clusters`.
    ///
    /// # Errors
    ///
    /// [`RangeError::MaxConnectedClusters`] for other values than 255 and 511.
    pub const fn for_clusters(max_connected_clusters: u32) -> Result<Self, RangeError> {
        match max_connected_clusters {
            255 => Ok(Self::Eight),
            511 => Ok(Self::Nine),
            other => Err(RangeError::MaxConnectedClusters(other)),
        }
    }

    /// How many bits.
    pub const fn get(self) -> u32 {
        match self {
            Self::Eight => 8,
            Self::Nine => 9,
        }
    }

    /// Bits below the id of the cluster.
    pub const fn shift(self) -> u32 {
        BITS - self.get()
    }

    /// The largest id of a cluster.
    pub const fn max_cluster_id(self) -> u32 {
        (1 << self.get()) - 1
    }
}

/// The numbers that a cluster may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityRange {
    first: NumericIdentity,
    last: NumericIdentity,
}

impl IdentityRange {
    /// The numbers of a cluster. Cluster 0, which is part of no mesh, begins at 256.
    ///
    /// ```
    /// use skep_identity::{ClusterIdBits, IdentityRange};
    ///
    /// let range = IdentityRange::of_cluster(7, ClusterIdBits::Eight)?;
    /// assert_eq!(range.to_string(), "458752-524287");
    /// # Ok::<(), skep_identity::RangeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RangeError::ClusterId`] for an id that is too large.
    pub fn of_cluster(cluster_id: u32, bits: ClusterIdBits) -> Result<Self, RangeError> {
        let max = bits.max_cluster_id();
        if cluster_id > max {
            return Err(RangeError::ClusterId { cluster_id, max });
        }
        let first = cluster_id << bits.shift();
        Ok(Self {
            first: NumericIdentity::new(first).max(NumericIdentity::FIRST_ALLOCATED),
            last: NumericIdentity::new(first + (1 << bits.shift()) - 1),
        })
    }

    /// The smallest one.
    pub const fn first(&self) -> NumericIdentity {
        self.first
    }

    /// The largest one.
    pub const fn last(&self) -> NumericIdentity {
        self.last
    }

    /// Whether a number is one of them.
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
            let bits = ClusterIdBits::for_clusters(max).unwrap();
            let found = IdentityRange::of_cluster(id, bits).unwrap();
            assert_eq!(found.to_string(), range, "cluster {id} of {max}");
            assert!(found.contains(found.first()) && found.contains(found.last()));
            assert!(!found.contains(NumericIdentity::new(found.first().get() - 1)));
            assert!(!found.contains(NumericIdentity::new(found.last().get() + 1)));
        }
    }

    #[test]
    fn errors_name_the_setting() {
        let error = IdentityRange::of_cluster(256, ClusterIdBits::Eight).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cluster id 256 is larger than max-connected-clusters, 255"
        );
        let error = ClusterIdBits::for_clusters(300).unwrap_err();
        assert_eq!(
            error.to_string(),
            "max-connected-clusters is 300, but only 255 and 511 are supported"
        );
    }
}
