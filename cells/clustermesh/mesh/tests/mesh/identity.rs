// SPDX-License-Identifier: Apache-2.0

//! Ids of clusters, and values that are not the cluster's own.

use std::sync::Arc;

use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::{Capabilities, Kind};
use skep_kvstore_client::memory::Memory;

use crate::fixture::{World, eventually, ip, node};

#[tokio::test(start_paused = true)]
async fn clusters_with_a_wrong_id_are_rejected_without_touching_others() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    world.join("alder");
    world.ready("alder").await;

    for (name, id, expected) in [
        (
            "cedar",
            7,
            "cluster `cedar`: cluster id 7 is already used by cluster `alder`",
        ),
        (
            "maple",
            9,
            "incompatible cluster configuration: cluster `maple`: cluster id 9 is assigned to the local cluster",
        ),
        (
            "yew",
            256,
            "incompatible cluster configuration: cluster `yew`: invalid cluster id 256: it must be from 1 to 255",
        ),
    ] {
        let other = world.cluster(name, id).await;
        other.put(Kind::Nodes, "n9", node(&other, "n9")).await;
        world.join(name);
        eventually("it is rejected", || {
            world.status(name).is_some_and(|status| status.num_failures > 1)
        })
        .await;
        let status = world.status(name).expect("it is configured");
        assert_eq!(status.last_error.as_deref(), Some(expected));
        assert!(!status.ready);
    }
    assert_eq!(world.nodes.names(), ["alder/n1"]);
    assert_eq!(world.status("alder").expect("it is configured").num_failures, 0);
    // The id is free when its owner is gone.
    world.leave("alder");
    world.ready("cedar").await;
    assert_eq!(world.nodes.names(), ["cedar/n9"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_another_id_is_read_anew() {
    let world = World::start().await;
    let store = Memory::new();
    let old = world
        .cluster_via("alder", 7, Arc::new(store.clone()), Arc::new(store.clone()))
        .await;
    old.put(Kind::Nodes, "n1", node(&old, "n1")).await;
    old.put_service(&old.service("cart", &["10.4.1.15"])).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("the backend is there", || {
        world.backends() == ["shop/cart 10.4.1.15:80/TCP@7"]
    })
    .await;
    world.nodes.take_events();

    let new = FakeCluster::in_store("alder", 8, Arc::new(store)).await;
    new.put(Kind::Nodes, "n1", node(&new, "n1")).await;
    new.put_service(&new.service("cart", &["10.4.1.15"])).await;
    eventually("it has the other id", || {
        world.backends() == ["shop/cart 10.4.1.15:80/TCP@8"]
    })
    .await;

    let events = world.nodes.take_events();
    assert_eq!(events, ["delete alder@7/n1", "upsert alder@8/n1"]);
    let cedar = world.cluster("cedar", 7).await;
    cedar.put(Kind::Nodes, "n1", node(&cedar, "n1")).await;
    world.join("cedar");
    world.ready("cedar").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_another_cluster_has_costs_a_cluster_nothing_of_what_it_said() {
    let world = World::start().await;
    let store = Memory::new();
    let alder = world
        .cluster_via("alder", 7, Arc::new(store.clone()), Arc::new(store.clone()))
        .await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    world.cluster("cedar", 8).await;
    for name in ["alder", "cedar"] {
        world.join(name);
        world.ready(name).await;
    }

    FakeCluster::in_store("alder", 8, Arc::new(store)).await;
    eventually("it is rejected", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;

    assert_eq!(world.nodes.names(), ["alder/n1"]);
    assert!(world.is_ready("cedar"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_speaks_for_itself_alone() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    let (cedar, _) = FakeCluster::in_memory("cedar", 8).await;
    alder.put(Kind::Nodes, "good", node(&alder, "good")).await;
    alder.put(Kind::Nodes, "stolen", node(&cedar, "stolen")).await;
    alder.put(Kind::Nodes, "renamed", node(&alder, "other")).await;
    alder.put(Kind::Ips, "10.4.1.1", ip(&alder, "10.4.1.1", 1)).await;
    alder.put(Kind::Ips, "10.4.1.2", ip(&cedar, "10.4.1.2", 1)).await;
    alder.put(Kind::Ips, "10.4.1.3", ip(&alder, "10.4.1.9", 1)).await;
    alder
        .put(
            Kind::Identities,
            "458753",
            "k8s:io.cilium.k8s.policy.cluster=alder;",
        )
        .await;
    alder
        .put(
            Kind::Identities,
            "458754",
            "k8s:io.cilium.k8s.policy.cluster=cedar;",
        )
        .await;
    alder
        .put(
            Kind::Identities,
            "524288",
            "k8s:io.cilium.k8s.policy.cluster=alder;",
        )
        .await;
    alder.put(Kind::Identities, "1", "reserved:host;").await;
    let foreign = cedar
        .service("cart", &["10.4.1.15"])
        .encode()
        .expect("it is JSON");
    alder.put(Kind::Services, "shop/cart", foreign).await;
    alder.put(Kind::Services, "shop/garbage", "{").await;
    alder.put_service(&alder.service("good", &["10.4.1.15"])).await;

    world.join("alder");
    world.ready("alder").await;

    assert_eq!(world.nodes.names(), ["alder/good"]);
    assert_eq!(world.ips.names(), ["alder/10.4.1.1"]);
    assert_eq!(world.identities.names(), ["alder/458753"]);
    eventually("the good one is there", || {
        world.backends() == ["shop/good 10.4.1.15:80/TCP@7"]
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_value_leaves_the_last_good_one() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("it is there", || world.backends().len() == 1).await;

    alder.put(Kind::Services, "shop/cart", "garbage").await;
    alder.put_service(&alder.service("next", &["10.4.1.16"])).await;
    eventually("the next one is there", || world.backends().len() == 2).await;

    assert_eq!(
        world.backends(),
        ["shop/cart 10.4.1.15:80/TCP@7", "shop/next 10.4.1.16:80/TCP@7"]
    );
    alder.delete(Kind::Services, "shop/cart").await;
    eventually("it is gone", || {
        world.backends() == ["shop/next 10.4.1.16:80/TCP@7"]
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn in_a_mesh_of_511_others_are_rejected() {
    let world = World::start_with(&["--max-connected-clusters=511"], |_| {}).await;
    let alder = world.cluster("alder", 300).await;
    world.join("alder");
    eventually("it is rejected", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;

    alder
        .configure(Capabilities {
            synced_canaries: true,
            max_connected_clusters: 511,
            ..Capabilities::default()
        })
        .await;
    world.ready("alder").await;
    world.stop().await;
}
