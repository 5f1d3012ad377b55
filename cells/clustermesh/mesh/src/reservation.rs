// SPDX-License-Identifier: Apache-2.0

//! Cluster ids: no two remote clusters have the same one.

use std::collections::HashMap;

use parking_lot::Mutex;
use skep_clustermesh_types::ClusterName;

use crate::error::RemoteError;

/// Which remote cluster has which id. An id stays reserved when the connection is lost, until the cluster is removed.
#[derive(Debug, Default)]
pub(crate) struct Reservations(Mutex<HashMap<u32, ClusterName>>);

impl Reservations {
    /// Reserves an id for a cluster, which may have it already.
    pub(crate) fn reserve(&self, id: u32, cluster: &ClusterName) -> Result<(), RemoteError> {
        let mut ids = self.0.lock();
        let owner = ids.entry(id).or_insert_with(|| cluster.clone());
        if owner == cluster {
            return Ok(());
        }
        Err(RemoteError::DuplicateId {
            cluster: cluster.clone(),
            id,
            owner: owner.clone(),
        })
    }

    /// Releases an id, if the cluster has it.
    pub(crate) fn release(&self, id: u32, cluster: &ClusterName) {
        let mut ids = self.0.lock();
        if ids.get(&id) == Some(cluster) {
            ids.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_owner_until_it_is_released() {
        let ids = Reservations::default();
        let [alder, birch] = ["alder", "birch"].map(|name| name.parse::<ClusterName>().expect("valid"));

        ids.reserve(7, &alder).expect("it is free");
        ids.reserve(7, &alder).expect("it is its own");
        let error = ids.reserve(7, &birch).expect_err("it is taken");
        assert_eq!(
            error.to_string(),
            "cluster `birch`: cluster id 7 is already used by cluster `alder`"
        );

        ids.release(7, &birch);
        ids.reserve(7, &birch).expect_err("birch did not have it");
        ids.release(7, &alder);
        ids.reserve(7, &birch).expect("it is free again");
    }
}
