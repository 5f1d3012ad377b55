// SPDX-License-Identifier: Apache-2.0

//! A real etcd.

use serde_json::json;
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_etcd::testing::EtcdServer;

use crate::world::{ENDPOINTS, NODES, World, endpoint, exporters};

const ADDRESSES: usize = 1_500;

async fn keys(server: &EtcdServer, prefix: &str) -> Vec<(String, i64)> {
    let client = RunningClient::full(server.backend());
    let listing = client.list(prefix).await.expect("etcd answers");
    let keys = listing.items.into_iter();
    keys.map(|item| (item.key.to_string(), item.mod_revision.0))
        .collect()
}

#[tokio::test]
async fn an_etcd_that_outlives_the_program_is_taken_over() {
    let server = EtcdServer::start().await;
    let world = World::new().await;
    world.apply(&NODES, json!({ "metadata": { "name": "a" } })).await;
    for at in 0..ADDRESSES {
        let ip = format!("10.4.{}.{}", at / 250, at % 250);
        let name = format!("pod-{at}");
        world.apply(&ENDPOINTS, endpoint(&name, 458_753, &[&ip])).await;
    }
    let program = world.start_on(server.backend(), exporters(), &[]).await;
    program.synced().await;
    let before = keys(&server, "cilium/state/").await;
    assert_eq!(before.len(), ADDRESSES + 1);
    assert_eq!(keys(&server, "cilium/synced/alder/").await.len(), 6);
    program.stop().await;
    world.delete(&ENDPOINTS, "shop", "pod-7").await;
    world
        .apply(&ENDPOINTS, endpoint("pod-8", 458_754, &["10.4.0.8"]))
        .await;

    let program = world.start_on(server.backend(), exporters(), &[]).await;
    program.synced().await;

    let after = keys(&server, "cilium/state/").await;
    let differs = |key: &str| key.ends_with("/10.4.0.7") || key.ends_with("/10.4.0.8");
    let expected: Vec<_> = before.iter().filter(|(key, _)| !differs(key)).collect();
    let unchanged: Vec<_> = after.iter().filter(|(key, _)| !differs(key)).collect();
    assert_eq!(unchanged, expected, "right keys are not written again");
    assert_eq!(after.len(), before.len() - 1);
    program.stop().await;
}
