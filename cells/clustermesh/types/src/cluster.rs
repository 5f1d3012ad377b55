// SPDX-License-Identifier: Apache-2.0

//! Names and ids of clusters.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name of a cluster.
pub const MAX_NAME: usize = 32;
/// The name of a cluster that was given none. It cannot be part of a mesh.
pub const DEFAULT_NAME: &str = "default";
/// Identities below are reserved or well known: they mean the same in every cluster.
pub const FIRST_ALLOCATED_IDENTITY: u32 = 256;

/// Name of a cluster: lower-case letters, digits and dashes, at most 32 characters. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

/// A name is not that of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid cluster name `{name}`: it must be 1 to {MAX_NAME} lower-case letters, digits and dashes, and neither begin nor end with a dash"
)]
pub struct InvalidClusterName {
    /// The name.
    pub name: String,
}

impl ClusterName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the cluster was given no name of its own.
    pub fn is_default(&self) -> bool {
        &*self.0 == DEFAULT_NAME
    }
}

impl Default for ClusterName {
    fn default() -> Self {
        Self(DEFAULT_NAME.into())
    }
}

impl FromStr for ClusterName {
    type Err = InvalidClusterName;

    fn from_str(name: &str) -> Result<Self, InvalidClusterName> {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_valid = (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(is_inner)
            && !name.starts_with('-')
            && !name.ends_with('-');
        if is_valid {
            Ok(Self(name.into()))
        } else {
            Err(InvalidClusterName {
                name: name.to_owned(),
            })
        }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for ClusterName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// How many clusters a mesh may have: all clusters of a mesh agree on it, and it never changes. It decides which bits of an
/// identity are the cluster's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxConnectedClusters {
    /// 255, of 65,536 identities each.
    #[default]
    Max255,
    /// 511, of 32,768 identities each.
    Max511,
}

/// A number of clusters is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported number of clusters {0}: it must be 255 or 511")]
pub struct UnsupportedMax(pub u32);

impl MaxConnectedClusters {
    /// The number, which is also the largest cluster id.
    pub const fn get(self) -> u32 {
        match self {
            Self::Max255 => 255,
            Self::Max511 => 511,
        }
    }

    /// How many bits of an identity are below the cluster id.
    pub const fn identity_bits(self) -> u32 {
        match self {
            Self::Max255 => 16,
            Self::Max511 => 15,
        }
    }

    /// The identities that a cluster allocates. Those of cluster 0, outside of a mesh, begin after the reserved ones.
    pub const fn identities(self, cluster_id: u32) -> RangeInclusive<u32> {
        let first = cluster_id << self.identity_bits();
        let last = first | ((1 << self.identity_bits()) - 1);
        if cluster_id == 0 {
            FIRST_ALLOCATED_IDENTITY..=last
        } else {
            first..=last
        }
    }
}

impl TryFrom<u32> for MaxConnectedClusters {
    type Error = UnsupportedMax;

    fn try_from(max: u32) -> Result<Self, UnsupportedMax> {
        match max {
            255 => Ok(Self::Max255),
            511 => Ok(Self::Max511),
            other => Err(UnsupportedMax(other)),
        }
    }
}

/// Who the local cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterInfo {
    /// Its name.
    pub name: ClusterName,
    /// Its id; 0 if it is not part of a mesh.
    pub id: u32,
    /// How many clusters the mesh may have.
    pub max_connected_clusters: MaxConnectedClusters,
}

/// Why a cluster cannot be what its settings say. See the settings `cluster-id` and `cluster-name`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterInfoError {
    /// The id does not fit the size of the mesh.
    #[error("invalid cluster id {id}: it must be from 0 to {max}")]
    Id {
        /// The id.
        id: u32,
        /// The largest one.
        max: u32,
    },
    /// A cluster with an id needs a name of its own.
    #[error("cannot use default cluster name with cluster id {id}")]
    DefaultName {
        /// The id.
        id: u32,
    },
}

impl ClusterInfo {
    /// Checks what belongs together.
    ///
    /// # Errors
    ///
    /// All that is wrong.
    pub fn check(&self) -> Result<(), Vec<ClusterInfoError>> {
        let mut errors = Vec::new();
        let (id, max) = (self.id, self.max_connected_clusters.get());
        if id > max {
            errors.push(ClusterInfoError::Id { id, max });
        }
        if id != 0 && self.name.is_default() {
            errors.push(ClusterInfoError::DefaultName { id });
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_labels_of_at_most_32_characters() {
        for name in ["a", "0", "alder", "alder-2", "a--b", &"x".repeat(32)] {
            assert_eq!(name.parse::<ClusterName>().expect(name).as_str(), name);
        }
        for name in [
            "",
            "-a",
            "a-",
            "Alder",
            "a.b",
            "a_b",
            "a/b",
            "ä",
            "..data",
            &"x".repeat(33),
        ] {
            let error = name.parse::<ClusterName>().expect_err(name);
            assert_eq!(error.name, name);
        }
    }

    #[test]
    fn identities_of_clusters_do_not_overlap() {
        let (small, large) = (MaxConnectedClusters::Max255, MaxConnectedClusters::Max511);

        assert_eq!(small.identities(0), 256..=65_535);
        assert_eq!(small.identities(7), 458_752..=524_287);
        assert_eq!(small.identities(255), 16_711_680..=16_777_215);
        assert_eq!(large.identities(0), 256..=32_767);
        assert_eq!(large.identities(511), 16_744_448..=16_777_215);
    }

    #[test]
    fn only_two_sizes_of_meshes_are_supported() {
        assert_eq!(
            MaxConnectedClusters::try_from(255).map(MaxConnectedClusters::get),
            Ok(255)
        );
        assert_eq!(
            MaxConnectedClusters::try_from(511).map(MaxConnectedClusters::get),
            Ok(511)
        );
        assert_eq!(MaxConnectedClusters::try_from(256), Err(UnsupportedMax(256)));
    }

    #[test]
    fn a_cluster_with_an_id_has_a_name_and_an_id_that_fits() {
        let info = |name: &str, id| ClusterInfo {
            name: name.parse().expect("it is valid"),
            id,
            max_connected_clusters: MaxConnectedClusters::Max255,
        };

        assert_eq!(info("default", 0).check(), Ok(()));
        assert_eq!(info("alder", 255).check(), Ok(()));
        assert_eq!(
            info("default", 256).check(),
            Err(vec![
                ClusterInfoError::Id { id: 256, max: 255 },
                ClusterInfoError::DefaultName { id: 256 }
            ])
        );
    }
}
