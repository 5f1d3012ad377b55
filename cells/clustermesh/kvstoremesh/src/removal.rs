// SPDX-License-Identifier: Apache-2.0

//! Deletes the copy of a cluster.

use std::time::Duration;

use skep_clustermesh_types::{ClusterName, Kind, keys};
use skep_kvstore_client::{Client, Error};

/// How often a deletion is tried. Keys that are left then are deleted by the next program that leads.
const ATTEMPTS: u32 = 5;
/// The first pause between two attempts; it doubles.
const PAUSE: Duration = Duration::from_secs(2);
/// What is deleted after the canaries, in this order.
const ORDER: [Kind; 6] = [
    Kind::EndpointSlices,
    Kind::Ips,
    Kind::Identities,
    Kind::Nodes,
    Kind::ServiceExports,
    Kind::Services,
];

/// Deletes the configuration of a cluster.
pub(crate) async fn delete_config(client: &Client, cluster: &ClusterName) {
    retry(client, cluster, false).await;
}

/// Deletes configuration, canaries and values of a cluster. The canaries before the values: whoever begins to read then finds
/// nothing to read.
pub(crate) async fn delete(client: &Client, cluster: &ClusterName) {
    retry(client, cluster, true).await;
}

async fn retry(client: &Client, cluster: &ClusterName, with_values: bool) {
    let mut pause = PAUSE;
    for at in 1..=ATTEMPTS {
        let Err(error) = attempt(client, cluster, with_values).await else {
            return;
        };
        tracing::warn!(
            cluster = %cluster, attempt = at, error = hive::error_chain(&error),
            "Unable to delete cached data of remote cluster"
        );
        if at < ATTEMPTS {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
}

async fn attempt(client: &Client, cluster: &ClusterName, with_values: bool) -> Result<(), Error> {
    client.delete(&keys::cluster_config(cluster.as_str())).await?;
    if !with_values {
        return Ok(());
    }
    let canaries = keys::canary_prefix(cluster.as_str());
    client.delete_prefix(&format!("{canaries}/")).await?;
    for kind in ORDER {
        let prefix = format!("{}/", kind.prefix(cluster.as_str(), true));
        client.delete_prefix(&prefix).await?;
    }
    Ok(())
}
