// SPDX-License-Identifier: Apache-2.0

//! Election, readiness, and what is served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use skep_base_metrics::{Namespace, Registry};
use skep_clustermesh_kvstoremesh::{ApiConfig, HealthConfig, Listening};
use skep_clustermesh_mesh::testing::Logged;
use skep_clustermesh_types::Kind;
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::{Backend, testing::FaultyBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::fixture::{Place, World, canaries, copies, eventually};

/// Status and body of an answer.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it is answered");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status.expect("there is a status"), body.expect("there is a body"))
}

fn address<C: Send + Sync + 'static>(world: &World) -> SocketAddr {
    let listening: Arc<Listening<C>> = world.running.get().expect("it is provided");
    listening.addresses()[0]
}

/// On IPv4 alone a pod of an IPv6-only cluster is never ready.
#[tokio::test]
async fn probes_are_answered_on_both_families() {
    let (_, place) = Place::in_memory();
    let world = World::start_at(place, &[]).await;
    let all = address::<HealthConfig>(&world);

    for ip in ["127.0.0.1", "::1"]
        .iter()
        .take(if all.is_ipv6() { 2 } else { 1 })
    {
        let address = SocketAddr::new(ip.parse().expect("it is an address"), all.port());
        let (_, body) = get(address, "/readyz").await;
        assert!(body.ends_with("Ready"), "{body}");
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_second_replica_is_ready_and_copies_when_the_first_stops() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    alder.put(Kind::Nodes, "n1", "1").await;
    place.join("alder");
    let first = World::start_at(place.clone(), &[]).await;
    first.ready("alder").await;
    let locks = place.keys("cilium/kvstoremesh-lock/").await;
    assert_eq!(locks.len(), 1);

    let second = World::start_at(place.clone(), &[]).await;
    second.readiness.wait().await;
    assert_eq!(second.mesh.status(), [], "it copies nothing");

    first.stop().await;
    second.ready("alder").await;
    alder.put(Kind::Nodes, "n2", "1").await;
    let expected = [(Kind::Nodes, "n1", "1"), (Kind::Nodes, "n2", "1")];
    place.copied(copies("alder", &expected)).await;
    let n1 = place
        .item("cilium/cache/nodes/v1/alder/n1")
        .await
        .expect("it stays");
    assert_eq!(n1.version, 1);
    assert_ne!(place.keys("cilium/kvstoremesh-lock/").await, locks);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_loses_its_lock_ends() {
    let (local, place) = Place::in_memory();
    place.cluster("alder", 7).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    hive::testing::expect_failure(&world.running, "leader election lost");

    let lock = place.items("cilium/kvstoremesh-lock/").await.remove(0);
    local.revoke_lease(lock.lease).await.expect("it is revoked");

    let cause = timeout(Duration::from_secs(60), world.running.wait())
        .await
        .expect("it ends");
    assert!(cause.to_string().contains("leader election lost"), "{cause}");
    let _ = world.running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_reached_is_no_other_leader() {
    let (local, place) = Place::in_memory();
    let faulty = FaultyBackend::new(Arc::new(local));
    faulty.partition(true);
    let world = World::start_via(place.clone(), faulty.clone(), &[]).await;

    sleep(Duration::from_secs(120)).await;
    assert!(!world.readiness.is_ready());

    faulty.partition(false);
    world.readiness.wait().await;
    world.stop().await;
}

/// There were two lines an attempt: one of the election, and one of its health.
#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_taken_is_one_warning_an_attempt_with_its_cause() {
    let (logged, _logging) = Logged::start();
    let (local, place) = Place::in_memory();
    let leader = World::start_at(place.clone(), &[]).await;
    leader.readiness.wait().await;
    let faulty = FaultyBackend::new(Arc::new(local));
    let second = World::start_with_logged_health(place, faulty.clone()).await;
    sleep(Duration::from_secs(5)).await;

    // The attempt under way ends after ten seconds, and the next one fails.
    faulty.fill(true);
    sleep(Duration::from_secs(6)).await;

    let warnings = logged.warnings("kvstoremesh-election");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    for part in ["Unable to take the lock of the leader, retrying", "no space left"] {
        assert!(warnings[0].contains(part), "{part}: {warnings:#?}");
    }
    faulty.fill(false);
    second.readiness.wait().await;
    second.stop().await;
    leader.stop().await;
}

#[tokio::test(start_paused = true)]
async fn readiness_waits_for_copies_and_not_for_clusters_that_cannot_be_reached() {
    let (_, place) = Place::in_memory();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let faulty = FaultyBackend::new(store.clone());
    faulty.partition(true);
    place.cluster_via("maple", 8, store, faulty).await;
    place.cluster("alder", 7).await;
    for name in ["alder", "maple"] {
        place.join(name);
    }
    let started = Instant::now();
    let world = World::start_at(place.clone(), &[]).await;

    world.readiness.wait().await;

    let took = started.elapsed();
    assert!(
        took >= Duration::from_secs(15) && took < Duration::from_secs(20),
        "{took:?}"
    );
    assert_eq!(place.keys("cilium/synced/").await, canaries("alder"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_the_global_timeout_a_replica_is_ready_in_any_case() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    alder.delete_prefix("cilium/synced/").await;
    place.join("alder");
    let started = Instant::now();
    let world = World::start_at(place.clone(), &["--global-ready-timeout=2m"]).await;

    world.readiness.wait().await;

    let took = started.elapsed();
    assert!(
        took >= Duration::from_secs(120) && took < Duration::from_secs(125),
        "{took:?}"
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_clusters_a_replica_is_ready_at_once() {
    let world = World::start().await;

    world.readiness.wait().await;

    world.stop().await;
}

#[tokio::test]
async fn status_and_readiness_are_served() {
    let (_, place) = Place::in_memory();
    let alder = place.cluster("alder", 7).await;
    alder.delete_prefix("cilium/synced/").await;
    alder.put(Kind::Nodes, "n1", "1").await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    eventually("it is connected", || {
        world
            .status("alder")
            .is_some_and(|status| status.config.is_some())
    })
    .await;
    let (api, health) = (address::<ApiConfig>(&world), address::<HealthConfig>(&world));
    let health = SocketAddr::from(([127, 0, 0, 1], health.port()));

    assert_eq!(get(health, "/readyz").await, (500, "NotReady".to_owned()));
    assert_eq!(get(health, "/healthz").await.0, 404);
    let (status, body) = get(api, "/v1/cluster").await;
    assert_eq!(status, 200);
    assert!(
        body.starts_with("[{\"name\":\"alder\",\"connected\":true,"),
        "{body}"
    );

    alder.publish().await;
    world.ready("alder").await;
    world.readiness.wait().await;
    assert_eq!(get(health, "/readyz").await, (200, "Ready".to_owned()));
    let (_, body) = get(api, "/v1/cluster").await;
    let clusters: Vec<skep_clustermesh_mesh::RemoteClusterStatus> =
        serde_json::from_str(&body).expect("it is the model");
    assert!(clusters[0].ready);
    assert_eq!(clusters[0].num_nodes, 1);
    assert_eq!(
        clusters[0].config.as_ref().map(|config| config.cluster_id),
        Some(7)
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_is_written_if_that_is_enabled() {
    for (args, is_written) in [(&[][..], false), (&["--enable-heartbeat"][..], true)] {
        let world = World::start_at(Place::in_memory().1, args).await;
        world.readiness.wait().await;
        sleep(Duration::from_secs(5)).await;

        let heartbeat = world.place.item("cilium/.heartbeat").await;
        assert_eq!(heartbeat.is_some(), is_written);
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_name_the_clusters() {
    let (_, place) = Place::in_memory();
    place.cluster("alder", 7).await;
    place.join("alder");
    let world = World::start_at(place.clone(), &[]).await;
    world.ready("alder").await;
    sleep(Duration::from_secs(2)).await;

    let metrics = skep_base_metrics::MetricSet::metrics(&*world.metrics);
    let registry = Registry::in_namespace(Namespace::KVSTOREMESH, metrics, &[]);
    let text = skep_base_metrics::exposition(&registry.expect("names are unique"));
    for line in [
        "cilium_kvstoremesh_remote_clusters 1",
        "cilium_kvstoremesh_remote_cluster_readiness_status{target_cluster=\"alder\"} 1",
        "cilium_kvstoremesh_remote_cluster_failures{target_cluster=\"alder\"} 0",
        "cilium_kvstoremesh_leader_election_master_status{name=\"kvstoremesh\"} 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    world.stop().await;
}
