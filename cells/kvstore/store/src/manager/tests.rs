// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use super::*;
use crate::testing::{Log, delete, memory, put, settle};

const NODES: &str = "cilium/state/nodes/v1";
const SERVICES: &str = "cilium/state/services/v1";

fn manager<'a>(mut manager: WatchStoreManager<'a>, log: &'a Log) -> WatchStoreManager<'a> {
    for prefix in [NODES, SERVICES] {
        manager.register(prefix, async move {
            log.push(prefix);
            std::future::pending::<()>().await;
        });
    }
    manager
}

async fn during(manager: WatchStoreManager<'_>, actions: impl Future<Output = ()>) {
    tokio::select! {
        () = manager.run() => {}
        () = actions => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefix_starts_once_when_its_canary_appears() {
    let (_store, client) = memory();
    let log = Log::default();
    let manager = manager(WatchStoreManager::with_canaries(client.clone(), "alder"), &log);
    put(&client, "cilium/synced/alder-2/cilium/state/nodes/v1", "").await;

    during(manager, async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(log.take(), [""; 0]);

        put(&client, "cilium/synced/alder/cilium/state/services/v1", "").await;
        assert_eq!(log.wait(1).await, [SERVICES]);

        delete(&client, "cilium/synced/alder/cilium/state/services/v1").await;
        put(&client, "cilium/synced/alder/cilium/state/services/v1", "").await;
        put(&client, "cilium/synced/alder/cilium/state/nodes/v1", "").await;
        assert_eq!(log.wait(1).await, [NODES]);
        settle().await;
        assert_eq!(log.take(), [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn canaries_that_exist_already_count() {
    let (_store, client) = memory();
    let log = Log::default();
    let manager = manager(WatchStoreManager::with_canaries(client.clone(), "alder"), &log);
    put(&client, "cilium/synced/alder/cilium/state/nodes/v1", "").await;

    during(manager, async {
        assert_eq!(log.wait(1).await, [NODES]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_canaries_everything_starts_at_once() {
    let log = Log::default();

    during(manager(WatchStoreManager::immediate(), &log), async {
        assert_eq!(log.wait(2).await.len(), 2);
        settle().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_ends_does_not_end_the_others() {
    let log = Log::default();
    let mut manager = WatchStoreManager::immediate();
    manager.register(NODES, async {});
    manager.register(SERVICES, async {
        settle().await;
        log.push("done");
    });

    during(manager, async {
        assert_eq!(log.wait(1).await, ["done"]);
        settle().await;
    })
    .await;
}
