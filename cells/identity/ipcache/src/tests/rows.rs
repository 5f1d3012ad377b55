// SPDX-License-Identifier: Apache-2.0

//! What the map has of claims that come and go.

use statedb::Row;
use statedb::reconciler::StatusKind;

use super::*;
use crate::{EndpointFlags, PodMetadata};

#[tokio::test]
async fn strongest_source_wins_and_weaker_ones_return() {
    let world = World::start();

    assert_eq!(
        world.upsert("10.0.2.8", number(Source::ClusterMesh, "a", 458_752)),
        Upserted::Wins
    );
    world.expect(&["10.0.2.8/32 identity=458752"]).await;
    assert_eq!(
        world.upsert("10.0.2.8", number(Source::CustomResource, "b", 52_311)),
        Upserted::Wins
    );
    world.expect(&["10.0.2.8/32 identity=52311"]).await;
    assert_eq!(
        world.upsert("10.0.2.8", number(Source::ClusterMesh, "a", 458_753)),
        Upserted::LosesTo(Source::CustomResource)
    );
    assert_eq!(
        world.upsert("10.0.2.8", number(Source::ClusterMesh, "a", 458_753)),
        Upserted::Same
    );
    assert!(
        !world.delete("10.0.2.8", &owner(Source::KvStore, "b")),
        "another source"
    );
    assert!(world.delete("10.0.2.8", &owner(Source::CustomResource, "b")));
    world.expect(&["10.0.2.8/32 identity=458753"]).await;
    assert!(world.delete("10.0.2.8", &owner(Source::ClusterMesh, "a")));
    world.expect(&[]).await;
    assert!(!world.delete("10.0.2.8", &owner(Source::ClusterMesh, "a")));

    world.end().await;
}

#[tokio::test]
async fn address_shadows_the_network_that_has_only_it() {
    let world = World::start();

    world.upsert("10.4.1.15/32", number(Source::Generated, "cidr", 16_777_217));
    world.expect(&["10.4.1.15/32 identity=16777217"]).await;
    world.upsert("10.4.1.15", number(Source::ClusterMesh, "pod", 458_752));
    world.expect(&["10.4.1.15/32 identity=458752"]).await;
    world.upsert("10.4.1.15/32", number(Source::Generated, "cidr", 16_777_218));
    world.expect_status("10.4.1.15/32", StatusKind::Done).await;
    world.expect(&["10.4.1.15/32 identity=458752"]).await;
    world.delete("10.4.1.15", &owner(Source::ClusterMesh, "pod"));
    world.expect(&["10.4.1.15/32 identity=16777218"]).await;
    world.upsert("10.4.1.15", number(Source::ClusterMesh, "pod", 458_752));
    world.delete("10.4.1.15/32", &owner(Source::Generated, "cidr"));
    world.expect(&["10.4.1.15/32 identity=458752"]).await;

    world.end().await;
}

#[tokio::test]
async fn labels_of_all_sources_are_united() {
    let world = World::start();
    let api = label(Source::KubeApiserver, "api", Reserved::KubeApiserver);

    world.upsert("172.30.1.2", api.clone());
    world.expect_status("172.30.1.2", StatusKind::Done).await;
    world.expect(&[]).await;
    world.upsert(
        "172.30.1.2",
        label(Source::CustomResource, "n2", Reserved::RemoteNode),
    );
    world.expect(&["172.30.1.2/32 identity=7"]).await;
    world.upsert("172.30.1.2", label(Source::Local, "eth0", Reserved::Host));
    world.expect(&["172.30.1.2/32 identity=1"]).await;
    world.delete("172.30.1.2", &owner(Source::Local, "eth0"));
    world.delete("172.30.1.2", &api.owner);
    world.expect(&["172.30.1.2/32 identity=6"]).await;

    world.end().await;
}

#[tokio::test]
async fn entries_have_tunnel_key_and_flags_of_the_strongest_claim_that_has_them() {
    let world = World::start();
    let node = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let weak = label(Source::ClusterMesh, "weak", Reserved::RemoteNode)
        .tunnel_peer(node("192.168.5.12"))
        .encrypt_key(3)
        .flags(EndpointFlags::REMOTE_CLUSTER);

    world.upsert("10.0.2.1", weak);
    world.upsert(
        "10.0.2.1",
        label(Source::CustomResource, "strong", Reserved::RemoteNode).encrypt_key(0),
    );
    world.upsert(
        "fd00::1",
        number(Source::ClusterMesh, "pod", 458_752)
            .tunnel_peer(node("fd01::2"))
            .encrypt_key(255)
            .flags(EndpointFlags::SKIP_TUNNEL),
    );

    world
        .expect(&[
            "10.0.2.1/32 identity=6 encryptkey=0 tunnelendpoint=192.168.5.12 flags=hastunnel,remotecluster",
            "fd00::1/128 identity=458752 encryptkey=255 tunnelendpoint=fd01::2 flags=skiptunnel,hastunnel,ipv6tunnel",
        ])
        .await;
    world.end().await;
}

#[test]
fn numbers_lose_to_labels_of_the_same_source() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let mut txn = writer.write();
    for claim in [
        label(Source::KvStore, "node", Reserved::Health),
        number(Source::KvStore, "endpoint", 300),
    ] {
        writer.upsert(&mut txn, prefix("10.0.1.91"), claim).unwrap();
    }
    let snapshot = txn.commit();

    let table = writer.table();
    let row = table.all(&snapshot).next().unwrap();
    assert_eq!(row.resolve().unwrap().identity, NumericIdentity::HEALTH);
}

#[test]
fn labels_without_identity_leave_it_to_numbers() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let mut txn = writer.write();
    for claim in [
        label(Source::KubeApiserver, "api", Reserved::KubeApiserver),
        number(Source::Generated, "cidr", 16_777_217),
    ] {
        writer.upsert(&mut txn, prefix("198.51.100.7"), claim).unwrap();
    }
    let snapshot = txn.commit();

    let table = writer.table();
    let row = table.all(&snapshot).next().unwrap();
    let resolved = row.resolve().unwrap();
    assert_eq!(
        (resolved.identity.get(), resolved.source),
        (16_777_217, Source::Generated)
    );
}

#[tokio::test]
async fn row_that_the_map_has_as_it_is_does_not_become_pending() {
    let world = World::start();
    world.upsert("10.0.2.8", number(Source::Local, "a", 300));
    world.expect_status("10.0.2.8", StatusKind::Done).await;

    world.upsert("10.0.2.8", number(Source::ClusterMesh, "b", 458_752));

    let table = world.writer.table();
    let row = table
        .get(
            &world.writer.db().read(),
            IpcacheEntry::BY_PREFIX.key(&prefix("10.0.2.8")),
        )
        .cloned()
        .unwrap();
    assert_eq!(row.status.kind, StatusKind::Done);
    assert_eq!(row.claims.iter().count(), 2);
    world.end().await;
}

#[test]
fn owners_that_are_gone_leave_nothing_but_what_is_kept() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let mut txn = writer.write();
    for (text, claim) in [
        ("10.0.1.1", number(Source::ClusterMesh, "alder", 1000)),
        ("10.0.1.2", number(Source::ClusterMesh, "alder", 1001)),
        ("10.0.1.2", number(Source::ClusterMesh, "birch", 1002)),
        ("10.0.1.3", number(Source::ClusterMesh, "alder", 1003)),
    ] {
        writer.upsert(&mut txn, prefix(text), claim).unwrap();
    }
    let alder = owner(Source::ClusterMesh, "alder");

    let kept = prefix("10.0.1.3");
    let deleted = writer
        .delete_owned(&mut txn, |owner| *owner == alder, |prefix| *prefix == kept)
        .unwrap();
    let snapshot = txn.commit();

    assert_eq!(deleted, 2);
    let table = writer.table();
    let left: Vec<String> = table
        .all(&snapshot)
        .map(|row| format!("{} {}", row.prefix, row.resolve().unwrap().identity))
        .collect();
    assert_eq!(left, ["10.0.1.2 1002", "10.0.1.3 1003"]);
}

#[test]
fn lookup_finds_the_longest_prefix_with_an_identity() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let mut txn = writer.write();
    for (text, claim) in [
        ("0.0.0.0/0", number(Source::Local, "world", 2)),
        ("10.4.0.0/16", number(Source::Generated, "cidr", 3)),
        ("10.4.1.15/32", number(Source::Generated, "cidr", 4)),
        ("10.4.1.15", number(Source::ClusterMesh, "pod", 5)),
        (
            "10.4.1.16",
            label(Source::KubeApiserver, "api", Reserved::KubeApiserver),
        ),
        ("10.4.1.17@7", number(Source::ClusterMesh, "pod", 6)),
        ("fd00::/8", number(Source::Generated, "cidr", 7)),
    ] {
        writer.upsert(&mut txn, prefix(text), claim).unwrap();
    }
    let snapshot = txn.commit();

    let table = writer.table();
    let identity = |address: &str, cluster| {
        let row = crate::lookup(&table, &snapshot, address.parse().unwrap(), cluster);
        row.map(|row| row.resolve().unwrap().identity.get())
    };
    assert_eq!(identity("10.4.1.15", 0), Some(5));
    assert_eq!(identity("10.4.1.16", 0), Some(3));
    assert_eq!(identity("10.4.1.17", 0), Some(3));
    assert_eq!(identity("10.4.1.17", 7), Some(6));
    assert_eq!(identity("192.0.2.1", 0), Some(2));
    assert_eq!(identity("fd12::1", 0), Some(7));
    assert_eq!(identity("2001:db8::1", 0), None);
}

#[test]
fn rows_are_shown_with_all_owners() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let mut txn = writer.write();
    let pod = PodMetadata {
        namespace: "shop".into(),
        name: "cart-0".into(),
        ..PodMetadata::default()
    };
    let claim = number(Source::ClusterMesh, "alder", 458_752)
        .tunnel_peer("192.168.5.12".parse::<std::net::IpAddr>().unwrap())
        .encrypt_key(255)
        .flags(EndpointFlags::REMOTE_CLUSTER)
        .pod(Arc::new(pod));
    writer.upsert(&mut txn, prefix("10.0.2.8"), claim).unwrap();
    writer
        .upsert(&mut txn, prefix("10.0.2.8"), number(Source::Generated, "x", 3))
        .unwrap();
    let snapshot = txn.commit();

    let table = writer.table();
    let row = table.all(&snapshot).next().unwrap();
    assert_eq!(
        row.cells(),
        [
            "10.0.2.8",
            "458752",
            "clustermesh",
            "192.168.5.12",
            "255",
            "remote-cluster",
            "shop/cart-0",
            "clustermesh:test//alder, generated:test//x",
            "Pending"
        ]
    );
    assert_eq!(IpcacheEntry::header().len(), row.cells().len());
    let json = row.to_json().unwrap();
    assert_eq!(json["Identity"], 458_752);
    assert_eq!(json["PodName"], "cart-0");
}
