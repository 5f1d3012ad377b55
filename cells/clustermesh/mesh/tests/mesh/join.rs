// SPDX-License-Identifier: Apache-2.0

//! Clusters come, change and go.

use std::time::Duration;

use skep_clustermesh_types::{Capabilities, Kind, keys};
use tokio::time::sleep;

use crate::fixture::{World, eventually, ip, node};

#[tokio::test(start_paused = true)]
async fn a_cluster_is_read_when_it_is_configured() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    alder
        .put(Kind::Ips, "10.4.1.15", ip(&alder, "10.4.1.15", 9))
        .await;
    alder
        .put(
            Kind::Identities,
            "458761",
            "k8s:a=b;k8s:io.cilium.k8s.policy.cluster=alder;",
        )
        .await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    assert_eq!(world.mesh.status(), []);

    world.join("alder");
    world.ready("alder").await;

    assert_eq!(world.nodes.names(), ["alder/n1"]);
    assert_eq!(world.ips.names(), ["alder/10.4.1.15"]);
    assert_eq!(world.identities.names(), ["alder/458761"]);
    eventually("the backend is there", || {
        world.backends() == ["shop/cart 10.4.1.15:80/TCP@7"]
    })
    .await;
    let status = world.status("alder").expect("it is configured");
    let config = status.config.clone().expect("it was read");
    assert_eq!(
        (config.cluster_id, config.sync_canaries, config.kvstoremesh),
        (7, true, false)
    );
    assert_eq!(
        (
            status.num_nodes,
            status.num_endpoints,
            status.num_identities,
            status.num_shared_services
        ),
        (1, 1, 1, 1)
    );
    assert_eq!(status.num_failures, 0);
    assert!(status.synced.nodes && status.synced.services && status.synced.service_exports.is_none());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn live_changes_arrive() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    world.join("alder");
    world.ready("alder").await;

    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    eventually("the node is there", || world.nodes.names() == ["alder/n1"]).await;
    alder.delete(Kind::Nodes, "n1").await;
    eventually("the node is gone", || world.nodes.names().is_empty()).await;

    assert_eq!(
        world.nodes.take_events(),
        ["synced alder", "upsert alder@7/n1", "delete alder@7/n1"]
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn all_of_a_cluster_goes_when_its_file_is_removed_and_its_id_is_free() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("the backend is there", || world.backends().len() == 1).await;

    world.leave("alder");
    eventually("the cluster is gone", || world.mesh.status().is_empty()).await;

    assert_eq!(world.nodes.names(), Vec::<String>::new());
    eventually("the backend is gone", || world.backends().is_empty()).await;
    world.cluster("cedar", 7).await;
    world.join("cedar");
    world.ready("cedar").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_comes_back_at_once_is_read_anew() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    world.join("alder");
    world.ready("alder").await;
    world.nodes.take_events();

    world.leave("alder");
    eventually("the cluster is gone", || world.nodes.names().is_empty()).await;
    world.join("alder");
    world.ready("alder").await;

    assert_eq!(
        world.nodes.take_events(),
        ["delete alder@7/n1", "upsert alder@7/n1", "synced alder"]
    );
    world
        .mesh
        .wait_synced(&[Kind::Nodes])
        .await
        .expect("it is synced");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_when_the_program_stops() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    world.join("alder");
    world.ready("alder").await;
    let nodes = world.nodes.clone();

    world.stop().await;

    assert_eq!(nodes.names(), ["alder/n1"]);
}

#[tokio::test(start_paused = true)]
async fn another_file_connects_anew_and_keeps_entries() {
    let world = World::start().await;
    let old = world.cluster("alder", 7).await;
    old.put(Kind::Nodes, "n1", node(&old, "n1")).await;
    old.put(Kind::Nodes, "n2", node(&old, "n2")).await;
    world.join("alder");
    world.ready("alder").await;
    world.nodes.take_events();
    let new = world.cluster("alder", 7).await;
    new.put(Kind::Nodes, "n2", node(&new, "n2")).await;
    new.put(Kind::Nodes, "n3", node(&new, "n3")).await;

    world.write("alder", "other");
    eventually("the other store is read", || {
        world.nodes.names() == ["alder/n2", "alder/n3"]
    })
    .await;

    let events = world.nodes.take_events();
    assert!(!events.contains(&"delete alder@7/n2".to_owned()), "{events:?}");
    assert_eq!(world.status("alder").expect("it is configured").num_failures, 0);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_ends_no_connection_that_works() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    world.join("alder");
    world.ready("alder").await;

    world.write("alder", "bad");
    eventually("it is reported", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures == 1)
    })
    .await;

    let status = world.status("alder").expect("it is configured");
    assert!(status.ready);
    assert_eq!(
        status.last_error.as_deref(),
        Some("cluster `alder`: invalid configuration file: no store for `alder`")
    );
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    eventually("it is read", || world.nodes.names() == ["alder/n1"]).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_is_retried_until_it_is_fixed() {
    let world = World::start().await;
    world.cluster("alder", 7).await;

    world.write("alder", "bad");
    eventually("it fails", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures >= 3)
    })
    .await;
    assert!(!world.is_ready("alder"));

    world.join("alder");
    world.ready("alder").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_own_cluster_and_files_of_others_are_ignored() {
    let world = World::start().await;
    world.cluster("birch", 8).await;
    world.cluster("alder", 7).await;

    world.join("birch");
    world.write("Cedar", "cedar");
    std::fs::write(world.directory.path().join("tls.key"), "secret").expect("it is written");
    world.join("alder");
    world.ready("alder").await;

    let names: Vec<String> = world
        .mesh
        .status()
        .into_iter()
        .map(|status| status.name)
        .collect();
    assert_eq!(names, ["alder"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn prefixes_are_read_when_their_canaries_are_there() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    let canary = keys::canary("alder", Kind::Nodes, false);
    alder.delete_key(&canary).await;

    world.join("alder");
    eventually("the others are complete", || {
        world
            .status("alder")
            .is_some_and(|status| status.synced.endpoints)
    })
    .await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.nodes.names(), Vec::<String>::new());
    assert!(!world.is_ready("alder"));

    alder.put_key(&canary, "2026-06-01T10:00:00Z").await;
    world.ready("alder").await;
    assert_eq!(world.nodes.names(), ["alder/n1"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn clusters_without_canaries_are_read_at_once() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    alder.delete_prefix(&keys::canary_prefix("alder")).await;
    alder.configure(Capabilities::default()).await;

    world.join("alder");
    world.ready("alder").await;

    assert_eq!(world.nodes.names(), ["alder/n1"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_kvstoremesh_are_read_where_they_are() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder
        .configure(Capabilities {
            synced_canaries: true,
            cached: true,
            ..Capabilities::default()
        })
        .await;
    for kind in Kind::ALL {
        alder
            .put_key(&keys::canary("alder", kind, true), "2026-06-01T10:00:00Z")
            .await;
    }
    alder
        .put_key(&Kind::Nodes.key("alder", true, "n1"), node(&alder, "n1"))
        .await;
    alder
        .put_key(
            &Kind::Ips.key("alder", true, "10.4.1.15"),
            ip(&alder, "10.4.1.15", 9),
        )
        .await;
    alder.put(Kind::Nodes, "not-read", node(&alder, "not-read")).await;

    world.join("alder");
    world.ready("alder").await;

    assert_eq!(world.nodes.names(), ["alder/n1"]);
    assert_eq!(world.ips.names(), ["alder/10.4.1.15"]);
    assert!(
        world
            .status("alder")
            .and_then(|status| status.config)
            .expect("it was read")
            .kvstoremesh
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn waits_end_when_all_clusters_are_complete_or_it_takes_too_long() {
    let world = World::start_with(&["--clustermesh-sync-timeout=40s"], |directory| {
        for name in ["alder", "cedar"] {
            skep_clustermesh_mesh::testing::write_file(directory, name, name);
        }
    })
    .await;
    let started = tokio::time::Instant::now();

    let error = world
        .mesh
        .wait_synced(&[Kind::Nodes, Kind::Services])
        .await
        .expect_err("nothing can be reached");

    assert_eq!(started.elapsed().as_secs(), 40);
    assert_eq!(
        error.to_string(),
        "no sync with remote clusters within 40s: alder (nodes, services), cedar (nodes, services)"
    );
    let alder = world.cluster("alder", 7).await;
    alder.delete_key(&keys::canary("alder", Kind::Ips, false)).await;
    world.leave("cedar");
    eventually("one is gone", || world.mesh.status().len() == 1).await;
    // Kinds without waiters do not matter; nor do clusters that are gone.
    world
        .mesh
        .wait_synced(&[Kind::Nodes, Kind::Services])
        .await
        .expect("they are complete");
    let error = world
        .mesh
        .wait_synced(&[Kind::Ips])
        .await
        .expect_err("its canary is missing");
    assert_eq!(error.clusters.len(), 1);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_an_id_there_is_no_mesh() {
    let world = World::start_with(&["--cluster-id=0"], |_| {}).await;
    world.cluster("alder", 7).await;
    world.join("alder");
    sleep(Duration::from_secs(60)).await;

    assert!(!world.mesh.is_enabled());
    assert_eq!(world.mesh.status(), []);
    world
        .mesh
        .wait_synced(&Kind::ALL)
        .await
        .expect("there is nothing to wait for");
    world.stop().await;
}
