// SPDX-License-Identifier: Apache-2.0

//! Remote clusters in real etcds, by their configuration files.

use futures::StreamExt as _;
use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::{Capabilities, Kind, keys};
use skep_kvstore_client::{KeyRange, RangeRequest};
use skep_kvstore_etcd::testing::{EtcdServer, Gate, Passes};

use crate::fixture::{World, eventually, node};

fn address(server: &EtcdServer) -> String {
    format!("http://127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn a_cluster_in_etcd_joins_reconnects_and_leaves() {
    let mut server = EtcdServer::start().await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    let world = World::start_etcd().await;

    world.write("alder", &address(&server));
    world.ready("alder").await;
    assert_eq!(world.nodes.names(), ["alder/n1"]);
    eventually("the backend is there", || {
        world.backends() == ["shop/cart 10.4.1.15:80/TCP@7"]
    })
    .await;
    let status = world.status("alder").expect("it is configured");
    assert!(
        status
            .status
            .starts_with("etcd: 1/1 connected, leases=0, lock leases=0, has-quorum=true"),
        "{status:?}"
    );

    server.kill();
    assert_eq!(world.nodes.names(), ["alder/n1"]);
    server.restart().await;
    alder.delete(Kind::Nodes, "n1").await;
    alder.put(Kind::Nodes, "n2", node(&alder, "n2")).await;
    eventually("changes are read", || world.nodes.names() == ["alder/n2"]).await;

    world.leave("alder");
    eventually("it is gone", || {
        world.mesh.status().is_empty() && world.backends().is_empty()
    })
    .await;
    assert_eq!(world.nodes.names(), Vec::<String>::new());
    world.stop().await;
}

#[tokio::test]
async fn an_etcd_that_was_set_up_anew_is_another_store() {
    let mut server = EtcdServer::start().await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    for name in ["n1", "n2"] {
        alder.put(Kind::Nodes, name, node(&alder, name)).await;
    }
    let world = World::start_etcd().await;
    world.write("alder", &address(&server));
    world.ready("alder").await;

    server.kill();
    server.wipe();
    server.restart().await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    alder.put(Kind::Nodes, "n2", node(&alder, "n2")).await;

    eventually("it is read", || world.nodes.names() == ["alder/n2"]).await;
    world.stop().await;
}

/// All of a cluster was withdrawn until its exporter was back.
#[tokio::test]
async fn an_etcd_that_is_wiped_or_restored_under_its_id_withdraws_nothing_before_it_is_complete() {
    for is_restored in [false, true] {
        let mut server = EtcdServer::start().await;
        // What the snapshot has says that it is not complete.
        FakeCluster::in_store("cedar", 8, server.backend()).await;
        let snapshot = server.snapshot();
        server.restart().await;
        let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
        for name in ["n1", "n2"] {
            alder.put(Kind::Nodes, name, node(&alder, name)).await;
        }
        alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
        let world = World::start_etcd().await;
        world.write("alder", &address(&server));
        world.ready("alder").await;

        if is_restored {
            server.restore(&snapshot);
        } else {
            server.wipe_under_its_id();
        }
        server.restart().await;

        let status = || world.status("alder").expect("it is configured");
        eventually("another store is noticed, and its configuration missed", || {
            let status = status();
            status.num_failures > 0
                && ["required but not found", "another store answers"]
                    .iter()
                    .all(|text| status.status.contains(text))
        })
        .await;
        alder.beat().await;
        let capabilities = Capabilities {
            synced_canaries: true,
            ..Capabilities::default()
        };
        alder.configure(capabilities).await;
        eventually("the configuration is there, the canaries are not", || {
            status().config.is_some_and(|config| config.retrieved)
        })
        .await;
        alder.put(Kind::Nodes, "n2", node(&alder, "n2")).await;
        assert!(!world.is_ready("alder"));
        assert_eq!(world.nodes.names(), ["alder/n1", "alder/n2"]);
        assert_eq!(world.backends(), ["shop/cart 10.4.1.15:80/TCP@7"]);

        alder.publish().await;
        eventually("it is read", || {
            world.nodes.names() == ["alder/n2"] && world.backends().is_empty()
        })
        .await;
        world.stop().await;
    }
}

/// They were shown three minutes later.
#[tokio::test]
async fn what_is_wrong_with_a_configuration_is_in_the_status_at_once() {
    let server = EtcdServer::start().await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    let key = keys::cluster_config("alder");
    alder.put_key(&key, "{").await;
    let world = World::start_etcd().await;
    world.write("alder", &address(&server));
    let has = |text: &'static str| {
        let world = &world;
        move || {
            world.status("alder").is_some_and(|status| {
                status.status.contains(text)
                    && status
                        .config
                        .is_some_and(|config| config.to_string() == "expected=true, retrieved=false")
            })
        }
    };

    let invalid = "cluster `alder`: invalid cluster configuration: ";
    eventually("it is no JSON", has(invalid)).await;
    alder.delete_key(&key).await;
    let missing = "remote cluster configuration required but not found";
    eventually("it is missing", has(missing)).await;

    let status = world.status("alder").expect("it is configured");
    assert_eq!(status.num_failures, 0, "{status:?}");
    alder.publish().await;
    world.ready("alder").await;
    let status = world.status("alder").expect("it is configured").status;
    assert!(!status.contains("configuration"), "{status}");
    world.stop().await;
}

#[tokio::test]
async fn compaction_loses_nothing() {
    let server = EtcdServer::start().await;
    let gate = Gate::before(server.port()).await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    let world = World::start_etcd().await;
    world.write("alder", &format!("http://127.0.0.1:{}", gate.port()));
    world.ready("alder").await;

    // What happens before the mesh has reached it again is compacted away.
    gate.set(Passes::Nothing);
    for at in 0..20 {
        alder.put(Kind::Nodes, "n2", node(&alder, "n2")).await;
        alder
            .put(Kind::Nodes, &format!("m{at}"), node(&alder, &format!("m{at}")))
            .await;
        alder.delete(Kind::Nodes, &format!("m{at}")).await;
    }
    alder.delete(Kind::Nodes, "n1").await;
    let backend = server.backend();
    let range = RangeRequest::new(KeyRange::key("cilium/.heartbeat"));
    let now = backend.range(range).await.expect("it answers").header.revision;
    backend.compact(now).await.expect("it is compacted");
    assert_eq!(world.nodes.names(), ["alder/n1"], "the mesh cannot reach it");
    gate.set(Passes::All);

    eventually("the newest state is read", || world.nodes.names() == ["alder/n2"]).await;
    world.stop().await;
}

/// Written by a batch, deleted by one request: what other clusters do that grow or are reset.
#[tokio::test]
async fn ten_thousand_keys_in_etcd_come_and_go_at_once() {
    let server = EtcdServer::start().await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    let world = World::start_etcd().await;
    world.write("alder", &address(&server));
    world.ready("alder").await;
    let writes = (0..10_000).map(|at| {
        let (alder, name) = (&alder, format!("n{at}"));
        async move { alder.put(Kind::Nodes, &name, node(alder, &name)).await }
    });
    futures::stream::iter(writes)
        .buffer_unordered(64)
        .collect::<()>()
        .await;
    eventually("all are there", || world.nodes.names().len() == 10_000).await;

    alder.delete_prefix(&Kind::Nodes.prefix("alder", false)).await;
    alder.put(Kind::Nodes, "last", node(&alder, "last")).await;

    eventually("all but the last are gone", || {
        world.nodes.names() == ["alder/last"]
    })
    .await;
    assert_eq!(world.status("alder").expect("it is configured").num_nodes, 1);
    assert_eq!(world.status("alder").expect("it is configured").num_failures, 0);
    world.stop().await;
}

#[tokio::test]
async fn a_half_written_file_is_read_when_it_is_whole() {
    let server = EtcdServer::start().await;
    let alder = FakeCluster::in_store("alder", 7, server.backend()).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    let world = World::start_etcd().await;
    let path = world.directory.path().join("alder");

    std::fs::write(&path, "endpoints: [http://127").expect("it is written");
    eventually("it is reported", || {
        world.status("alder").is_some_and(|status| {
            status
                .last_error
                .is_some_and(|error| error.contains("invalid configuration file"))
        })
    })
    .await;
    let status = world.status("alder").expect("it is configured").status;
    let named = format!(
        "cluster `alder`: invalid configuration file: cannot parse `{}`: ",
        path.display()
    );
    assert!(status.contains(&named), "{status}");

    // Its certificates are not mounted yet.
    let ca = world.directory.path().join("ca.crt");
    let text = format!(
        "endpoints: [{}]\ntrusted-ca-file: {}",
        address(&server),
        ca.display()
    );
    std::fs::write(&path, text).expect("it is written");
    let missing = format!("cannot read trusted-ca-file `{}`: No such file", ca.display());
    eventually("the missing file is named", || {
        world
            .status("alder")
            .is_some_and(|status| status.status.contains(&missing))
    })
    .await;
    std::fs::write(&path, format!("endpoints: [{}]", address(&server))).expect("it is written");

    world.ready("alder").await;
    assert_eq!(world.nodes.names(), ["alder/n1"]);
    world.stop().await;
}
