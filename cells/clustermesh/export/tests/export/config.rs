// SPDX-License-Identifier: Apache-2.0

//! The configuration of the cluster.

use std::sync::Arc;

use skep_clustermesh_export::cluster_config;
use skep_kvstore_client::Lifetime;

use crate::world::{World, eventually};

const KEY: &str = "cilium/cluster-config/alder";

#[tokio::test]
async fn what_others_write_or_delete_is_written_again() {
    let world = World::new().await;
    let program = world.start(&[]).await;
    eventually("it is there", || world.json(KEY).is_some()).await;
    let before = world.json(KEY);

    let client = program.client();
    client
        .put(KEY, "{\"id\":8}", Lifetime::Permanent)
        .await
        .expect("it is written");
    eventually("it is written again", || world.json(KEY) == before).await;
    client.delete(KEY).await.expect("it is deleted");
    eventually("it is written again", || world.json(KEY) == before).await;
    program.stop().await;
}

#[tokio::test]
async fn an_operator_promises_no_canaries_and_without_an_id_nothing_is_published() {
    let world = World::new().await;
    let cells = || vec![cluster_config::cell()];
    let memory = || Arc::new(world.memory.clone());
    let flags = ["--cluster-id=0"];
    let program = world.start_on(memory(), cells(), &flags).await;
    program.stop().await;
    assert_eq!(world.names("cilium/cluster-config/"), [""; 0]);

    let flags = [
        "--clustermesh-service-v2=only-endpointslice",
        "--max-connected-clusters=511",
    ];
    let program = world.start_on(memory(), cells(), &flags).await;

    let expected = r#"{"id":7,"capabilities":{"maxConnectedClusters":511,"serviceExportsEnabled":false,"endpointSlicesExportMode":"endpointslices-only"}}"#;
    eventually("it is there", || {
        world.keys(KEY).get(KEY).map(String::as_str) == Some(expected)
    })
    .await;
    program.stop().await;
}
