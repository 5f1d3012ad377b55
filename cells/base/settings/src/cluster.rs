// SPDX-License-Identifier: Apache-2.0

//! Names and ids of clusters, and the settings of the local one.

mod settings;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::clusters::MaxConnectedClusters;

pub use settings::{ClusterSettings, cell};

hive::catalogue!(cell);

/// The longest name of a cluster.
pub const MAX_NAME: usize = 32;
/// The name of a cluster that was given none. It cannot be part of a mesh.
pub const DEFAULT_NAME: &str = "default";

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
