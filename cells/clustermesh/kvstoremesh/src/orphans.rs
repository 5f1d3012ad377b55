// SPDX-License-Identifier: Apache-2.0

//! Deletes copies of clusters that were removed from the configuration while no program led.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hive::JobCtx;
use skep_clustermesh_mesh::ClusterMesh;
use skep_clustermesh_types::{CiliumClusterConfig, ClusterName, Kind, keys};
use skep_kvstore_client::{BackendError, Client, Error, KeyRange, RangeRequest};

use crate::copies::{Copies, GRACE};
use crate::removal;

/// Pause after an attempt that failed.
const RETRY: Duration = Duration::from_secs(10);

/// Deletes the copies of clusters that are not configured, with the same grace as if they were removed now. Returns when that
/// is done.
pub(crate) async fn remove((copies, mesh, local): &(Arc<Copies>, Arc<ClusterMesh>, ClusterName), _: &JobCtx) {
    if !copies.is_drained {
        return;
    }
    let configured = mesh.configured().await;
    let mut orphans = loop {
        match find(&copies.client, local).await {
            Ok(clusters) => break clusters,
            Err(error) => tracing::warn!(
                error = hive::error_chain(&error),
                "Unable to list cached data of removed clusters, retrying"
            ),
        }
        tokio::time::sleep(RETRY).await;
    };
    orphans.retain(|cluster| !configured.contains(cluster));
    if orphans.is_empty() {
        return;
    }
    for cluster in &orphans {
        tracing::info!(cluster = %cluster, "Removing cached data of removed cluster");
        if copies.find(cluster).is_none() {
            removal::delete_config(&copies.client, cluster).await;
        }
    }
    tokio::time::sleep(GRACE).await;
    for cluster in &orphans {
        // It may have been configured meanwhile.
        if copies.find(cluster).is_none() {
            removal::delete(&copies.client, cluster).await;
        }
    }
}

/// The clusters of which there is a copy, or a part of it.
async fn find(client: &Client, local: &ClusterName) -> Result<BTreeSet<ClusterName>, Error> {
    let mut clusters = BTreeSet::new();
    let configs = keys::cluster_config("");
    for item in client.list(&configs).await?.items {
        let is_copy = CiliumClusterConfig::decode(&item.value).is_ok_and(|config| config.capabilities.cached);
        if is_copy {
            clusters.extend(cluster_in(&configs, &item.key));
        }
    }
    let canaries = keys::canary_prefix("");
    for item in client.list(&canaries).await?.items {
        let is_copy = Kind::ALL
            .into_iter()
            .any(|kind| item.key.ends_with(kind.cache_prefix()));
        if is_copy {
            clusters.extend(cluster_in(&canaries, &item.key));
        }
    }
    for kind in Kind::ALL {
        let prefix = format!("{}/", kind.cache_prefix());
        // The first key of each cluster: there may be many keys.
        let mut range = KeyRange::prefix(&prefix);
        while let Some(key) = first(client, &prefix, range.clone()).await? {
            let Some(cluster) = cluster_in(&prefix, &key) else {
                break;
            };
            let next = KeyRange::prefix(&format!("{prefix}{cluster}/")).end().clone();
            range = range.starting_at(next);
            clusters.insert(cluster);
        }
    }
    clusters.remove(local);
    Ok(clusters)
}

/// The first key of a range.
async fn first(client: &Client, prefix: &str, range: KeyRange) -> Result<Option<String>, Error> {
    let request = RangeRequest {
        limit: 1,
        keys_only: true,
        ..RangeRequest::new(range)
    };
    let failed = |cause: BackendError| Error::Operation {
        operation: skep_kvstore_client::Operation::List,
        key: prefix.to_owned(),
        cause,
    };
    let response = client.backend().range(request).await.map_err(failed)?;
    Ok(response.items.into_iter().next().map(|item| item.key.to_string()))
}

/// The cluster of a key: what is between the prefix and the next slash.
fn cluster_in(prefix: &str, key: &str) -> Option<ClusterName> {
    let rest = key.strip_prefix(prefix)?;
    rest.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_their_clusters() {
        let cluster = |key| cluster_in("cilium/cache/ip/v1/", key).map(|cluster| cluster.to_string());

        assert_eq!(
            cluster("cilium/cache/ip/v1/alder/10.4.1.15").as_deref(),
            Some("alder")
        );
        assert_eq!(cluster("cilium/cache/ip/v1/alder").as_deref(), Some("alder"));
        assert_eq!(cluster("cilium/cache/ip/v1/"), None);
        assert_eq!(cluster("cilium/cache/nodes/v1/alder/n1"), None);
    }
}
