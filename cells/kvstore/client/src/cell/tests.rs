// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use hive::{Hive, testing};
use skep_base_metrics::{MetricSet, Registry, exposition};

use super::*;
use crate::backend::Backend;
use crate::keys;
use crate::types::{Key, Lifetime};

fn hive() -> Hive {
    Hive::new([
        memory(),
        metrics(),
        skep_base_limiter::cell(),
        heartbeat_updater(),
    ])
    .root::<Client>()
    .root::<Memory>()
    .root::<Arc<KvstoreMetrics>>()
}

fn stored(store: &Memory) -> Vec<Key> {
    store.items().into_iter().map(|item| item.key).collect()
}

#[tokio::test(start_paused = true)]
async fn the_memory_cell_is_a_client_with_its_store() {
    let running = testing::start(hive()).await;
    let client = running.get::<Client>().expect("it is provided");
    let store = running.get::<Memory>().expect("it is provided");
    let metrics = running.get::<Arc<KvstoreMetrics>>().expect("it is provided");

    client.wait_connected().await;
    client
        .put("cilium/state/nodes/v1/alder/n1", "{}", Lifetime::Leased)
        .await
        .expect("it is written");

    assert!(stored(&store).contains(&"cilium/state/nodes/v1/alder/n1".into()));
    let registry = Registry::new(metrics.metrics(), &[]).expect("the names differ");
    let text = exposition(&registry);
    let count = "cilium_kvstore_operations_duration_seconds_count\
                 {action=\"set\",kind=\"Update\",outcome=\"success\",scope=\"nodes/v1\"} 1";
    assert!(text.contains(count), "{text}");
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_is_written_at_once_each_minute_and_when_its_lease_ends() {
    let running = testing::start(hive()).await;
    let client = running.get::<Client>().expect("it is provided");
    let store = running.get::<Memory>().expect("it is provided");
    let beat = || {
        let items = store.items();
        items.into_iter().find(|item| &*item.key == keys::HEARTBEAT)
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = beat().expect("it is written at once");
    assert_eq!(first.version, 1);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(beat().expect("it is kept").version, 3);

    store.revoke_lease(first.lease).await.expect("it is revoked");
    client
        .put("other", "", Lifetime::Leased)
        .await
        .expect("it is written");
    tokio::time::sleep(Duration::from_secs(1)).await;

    let again = beat().expect("it is written again");
    assert_eq!(again.version, 1);
    assert_ne!(again.lease, first.lease);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_limits_of_a_client_are_shown() {
    let limiters = Arc::new(skep_base_limiter::LimiterMetrics::default());
    let metrics = Arc::new(KvstoreMetrics::new(limiters.clone()));
    let mut options = ClientOptions::new("etcd-birch", ClientKind::Mesh);
    options.rate = RateLimit {
        qps: 2,
        bootstrap_qps: None,
        max_inflight: 3,
    };
    options.recorder = metrics.clone();
    let (client, _driver) = Client::new(Arc::new(Memory::new()), options);
    let shows = |lines: &[&str]| {
        let registry = Registry::new(limiters.metrics(), &[]).expect("the names differ");
        let text = exposition(&registry);
        for line in lines {
            let line = line.replace('@', "{api_call=\"etcd-birch\",");
            assert!(
                text.contains(&format!("\ncilium_api_limiter_{line}")),
                "{line}\n{text}"
            );
        }
    };

    shows(&["rate_limit@value=\"limit\"} 2\n"]);
    // Two at once, and two more after half a second each.
    for _ in 0..4 {
        client.get("other").await.expect("it is read");
    }

    shows(&[
        "processed_requests_total@outcome=\"success\"} 4\n",
        "rate_limit@value=\"limit\"} 2\n",
        "rate_limit@value=\"burst\"} 2\n",
        "requests_in_flight@value=\"limit\"} 3\n",
        "requests_in_flight@value=\"in-flight\"} 0\n",
        // And what the clock is late.
        "wait_duration_seconds@value=\"mean\"} 0.25",
        "processing_duration_seconds@value=\"mean\"} 0\n",
    ]);
    // One that is given up while it waits is under way no more.
    let waiting = tokio::time::timeout(Duration::from_millis(100), client.get("other"));
    waiting.await.expect_err("it waits for a token");
    shows(&[
        "requests_in_flight@value=\"in-flight\"} 0\n",
        "processing_duration_seconds@value=\"mean\"} 0\n",
    ]);
}
