// SPDX-License-Identifier: Apache-2.0

//! What values of a remote cluster are checked against.

use skep_identity::{IdentityRange, MaxConnectedClusters, NumericIdentity};

use crate::error::ValueError;
use skep_base_settings::cluster::ClusterName;

/// A remote cluster as its values have to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteInfo {
    pub name: ClusterName,
    pub id: u32,
    pub max_connected_clusters: MaxConnectedClusters,
}

impl RemoteInfo {
    /// The identities that the cluster allocates; none if its id is too large.
    pub fn identities(&self) -> IdentityRange {
        IdentityRange::of_cluster(self.id, self.max_connected_clusters).unwrap_or(IdentityRange::EMPTY)
    }

    pub(crate) fn check_cluster(&self, found: &str) -> Result<(), ValueError> {
        if found == self.name.as_str() {
            return Ok(());
        }
        Err(ValueError::Cluster {
            found: found.to_owned(),
            expected: self.name.to_string(),
        })
    }

    pub(crate) fn check_id(&self, found: u32) -> Result<(), ValueError> {
        if found == self.id {
            return Ok(());
        }
        Err(ValueError::ClusterId {
            found,
            expected: self.id,
        })
    }

    /// Identities of the cluster, and those that are the same everywhere.
    pub(crate) fn check_usable_identity(&self, id: u32) -> Result<(), ValueError> {
        let range = self.identities();
        let identity = NumericIdentity::new(id);
        if identity < NumericIdentity::FIRST_ALLOCATED || range.contains(identity) {
            return Ok(());
        }
        Err(ValueError::Identity { id, range })
    }
}

pub(crate) fn check_name(found: &str, expected: &str) -> Result<(), ValueError> {
    if found == expected {
        return Ok(());
    }
    Err(ValueError::Name {
        found: found.to_owned(),
        expected: expected.to_owned(),
    })
}

/// Namespaced objects: nothing is empty, and the name is that of the key.
pub(crate) fn check_object(namespace: &str, name: &str, key: &str) -> Result<(), ValueError> {
    for (field, value) in [("namespace", namespace), ("name", name)] {
        if value.is_empty() {
            return Err(ValueError::Empty { field });
        }
    }
    let is_key = key
        .strip_prefix(namespace)
        .and_then(|rest| rest.strip_prefix('/'))
        .is_some_and(|rest| rest == name);
    if is_key {
        return Ok(());
    }
    check_name(&format!("{namespace}/{name}"), key)
}
