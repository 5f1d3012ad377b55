// SPDX-License-Identifier: Apache-2.0

//! The operator of a cluster with etcd.

use serde_json::json;
use skep_k8s_types::Kind;
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_client::{Lifetime, keys};
use skep_kvstore_etcd::testing::EtcdServer;

use super::world::{World, until};

static CILIUM_NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_waits_for_etcd_and_does_its_part_there() {
    let world = World::start().await;
    let mut etcd = EtcdServer::start().await;
    etcd.kill();
    let options = format!("--kvstore-opt=etcd.address=http://127.0.0.1:{}", etcd.port());
    let flags = [
        "--kvstore=etcd",
        options.as_str(),
        "--cluster-name=alder",
        "--cluster-id=7",
    ];
    let mut operator = world.operator("operator", &flags);
    // It leads, and is not healthy.
    world.next_leader("").await;
    operator
        .wait_healthz("500 kvstore: Waiting for initial connection to be established")
        .await;

    etcd.restart().await;

    operator.wait_healthz("200 ok").await;
    let client = RunningClient::full(etcd.backend());
    let exists = async |key: &str| client.get(key).await.is_ok_and(|item| item.is_some());
    until("the heartbeat is written", async || exists(keys::HEARTBEAT).await).await;
    until("the cluster is configured", async || {
        exists("cilium/cluster-config/alder").await
    })
    .await;
    // Global services are published.
    let service = json!({
        "metadata": {
            "name": "cart", "namespace": "kube-system", "annotations": { "service.cilium.io/global": "true" },
        },
        "spec": { "ports": [{ "port": 80 }] },
    });
    world.cluster.create(&Kind::SERVICE, service).await;
    let service = "cilium/state/services/v1/alder/kube-system/cart";
    until("the service is published", async || exists(service).await).await;
    operator
        .wait_shell(
            "kvstore/list --keys-only cilium/state/services/",
            &format!("# {service}\n"),
        )
        .await;
    // The key of a node is deleted with its CiliumNode.
    let definitions = async || {
        world
            .cluster
            .client()
            .list(&CILIUM_NODES, "", &Default::default())
            .await
            .is_ok()
    };
    until("CiliumNodes are defined", definitions).await;
    let node = "cilium/state/nodes/v1/alder/n1";
    client.put(node, "{}", Lifetime::Permanent).await.unwrap();
    world
        .cluster
        .create(&CILIUM_NODES, json!({ "metadata": { "name": "n1" }, "spec": {} }))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(exists(node).await);
    world.cluster.delete(&CILIUM_NODES, "", "n1").await;
    until("the key is deleted", async || !exists(node).await).await;

    operator.terminate();
    assert_eq!(operator.wait_exit().await, Some(0), "{}", operator.log());
    world.stop().await;
}
