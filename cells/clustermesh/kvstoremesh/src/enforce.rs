// SPDX-License-Identifier: Apache-2.0

//! Keeps the copied configuration of a cluster as it should be.

use std::time::Duration;

use bytes::Bytes;
use skep_clustermesh_types::{ClusterName, keys};
use skep_kvstore_client::{Client, Error, Event, Lifetime};
use tokio::sync::watch;

/// Time between two writes of a configuration that nothing has changed.
const REFRESH: Duration = Duration::from_secs(300);
/// Pauses after a write that failed.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// Writes the configuration of a cluster: when it changes, when another changes or deletes it, when its lease ends, and now
/// and then. `None` deletes it. Never returns.
pub(crate) async fn enforce(
    client: &Client,
    cluster: &ClusterName,
    mut config: watch::Receiver<Option<Bytes>>,
) {
    let key = keys::cluster_config(cluster.as_str());
    let mut lost = client.lost_keys(&key);
    let mut watcher = client.list_and_watch(&key);
    let mut failures = 0;
    // One that a former program wrote stays until the cluster is connected.
    let _ = config.wait_for(Option::is_some).await;
    loop {
        let desired = config.borrow_and_update().clone();
        let pause = match write(client, &key, desired.clone()).await {
            Ok(()) => {
                failures = 0;
                REFRESH
            }
            Err(error) => {
                tracing::warn!(
                    cluster = %cluster, error = hive::error_chain(&error),
                    "Unable to write configuration of remote cluster, retrying"
                );
                failures += 1;
                let (first, last) = BACKOFF;
                first.saturating_mul(1 << (failures - 1).min(10)).min(last)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = config.changed() => {}
            _ = lost.next() => {}
            () = changed(&mut watcher, &key, desired.as_ref()) => {}
        }
    }
}

async fn write(client: &Client, key: &str, config: Option<Bytes>) -> Result<(), Error> {
    match config {
        Some(config) => client
            .put_if_different(key, config, Lifetime::Leased)
            .await
            .map(|_| ()),
        None => client.delete(key).await.map(|_| ()),
    }
}

/// Returns when the key is not as desired.
async fn changed(watcher: &mut skep_kvstore_client::Watcher, key: &str, desired: Option<&Bytes>) {
    loop {
        match watcher.next().await {
            Event::Create(item) | Event::Modify(item)
                if &*item.key == key && Some(&item.value) != desired =>
            {
                return;
            }
            Event::Delete(deleted) if &*deleted == key && desired.is_some() => return,
            // It is right, or is the key of a cluster whose name begins like this one.
            _ => {}
        }
    }
}
